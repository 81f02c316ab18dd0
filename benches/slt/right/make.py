#!/usr/bin/env python3
"""Writes the answers of the .slt files beside it, as PostgreSQL and DuckDB give them.

    python3 make.py [--check] [FILE …]      without FILE: all files; --check changes nothing and fails where a file would change
    python3 make.py --data                  writes the files of data/ anew (with pyarrow), and no answers

Where both can run a statement they must agree, or the file says which of them it follows. Millpond has no part in it. The answers that
are checked in are those of PostgreSQL 15.18 and DuckDB 2.0.1.

What it needs (a folder outside the repository, here /tmp/oracles):

    python3 -m venv /tmp/oracles/venv
    /tmp/oracles/venv/bin/pip install duckdb psycopg2-binary pyarrow
    apt-get install postgresql                                        # Debian's; a server of its own, on loopback, not as root:
    install -d -o postgres /tmp/oracles/postgres
    B=/usr/lib/postgresql/15/bin
    runuser -u postgres -- $B/initdb -D /tmp/oracles/postgres/data --locale=C.UTF-8 -A trust
    runuser -u postgres -- $B/pg_ctl -D /tmp/oracles/postgres/data -l /tmp/oracles/postgres/log -w \\
        -o '-c listen_addresses=127.0.0.1 -p 54329 -k /tmp/oracles/postgres' start
    /tmp/oracles/venv/bin/python make.py
    runuser -u postgres -- $B/pg_ctl -D /tmp/oracles/postgres/data stop

A file is its own source: statements stay, what lies between `----` and the next empty line is written anew. Each file begins with an empty
database. Comments directly above a record say what the oracles run in its place:

    # postgres: SQL            another text for PostgreSQL; a comment that goes on with `#   ` belongs to it
    # duckdb: SQL              the same for DuckDB
    # postgres: none, WHY      PostgreSQL cannot run it, or has another dialect; it must have a reason
    # duckdb: none, WHY
    # values: duckdb, WHY      they differ, and this one is right for us
    # oracles: none, WHY       only Millpond runs it: a statement of its dialect, or a query whose rows are written by hand

A query that must fail (`query error`, `statement error`) must fail in the oracles that run it, too.

Letters of columns are those of the runner. R is a decimal or a float: floats are rounded to 12 places, as the runner does; a column of R
that PostgreSQL gives as numeric and DuckDB as a float is compared after that rounding.
"""
import argparse
import datetime
import decimal
import os
import pathlib
import re
import struct
import sys
import tempfile
import uuid

import duckdb
import psycopg2
import psycopg2.errors

FOLDER = pathlib.Path(__file__).resolve().parent
POSTGRES = "host=127.0.0.1 port=54329 user=postgres dbname=postgres"
DIRECTIVE = re.compile(r"# (postgres|duckdb|values|oracles): (.*)")


class Postgres:
    """A schema of its own, begun anew."""

    name = "postgres"

    def __init__(self, address):
        self.connection = psycopg2.connect(address)
        self.connection.autocommit = True
        self.cursor = self.connection.cursor()
        self.cursor.execute("SET client_min_messages = error; SET datestyle = 'ISO'; SET timezone = 'UTC'")
        self.cursor.execute("DROP SCHEMA IF EXISTS of_slt CASCADE; CREATE SCHEMA of_slt; SET search_path = of_slt")

    def run(self, sql):
        self.cursor.execute(sql)
        return self.cursor.fetchall() if self.cursor.description else []

    Error = psycopg2.Error
    # An error of the text itself says nothing of its values.
    Misread = tuple(getattr(psycopg2.errors, name) for name in ("SyntaxError", "UndefinedTable", "UndefinedColumn", "UndefinedFunction"))


class DuckDb:
    """A database in memory."""

    name = "duckdb"

    def __init__(self):
        self.connection = duckdb.connect()
        self.connection.execute("SET threads = 1")

    def run(self, sql):
        # It makes no folder that a file needs.
        for target in re.findall(r"\bTO '([^']+)'", sql):
            pathlib.Path(target).parent.mkdir(parents=True, exist_ok=True)
        return self.connection.execute(sql).fetchall()

    Error = duckdb.Error
    Misread = (duckdb.ParserException, duckdb.CatalogException, duckdb.BinderException)


class Fault(Exception):
    """What is wrong with a record."""


def plain(number, places):
    """A decimal number with at most `places` digits after its point, rounded half to even, without zeros at its end."""
    number = decimal.Decimal(number)
    with decimal.localcontext() as context:
        context.prec = 400
        if places is not None and -number.as_tuple().exponent > places:
            number = number.quantize(decimal.Decimal(1).scaleb(-places), rounding=decimal.ROUND_HALF_EVEN)
        text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def real(value, rounded):
    if isinstance(value, bool) or not isinstance(value, (int, float, decimal.Decimal)):
        raise Fault(f"{value!r} is no number")
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, float):
        return plain(repr(value), 12)
    return plain(value, 12 if rounded else None)


def moment(value):
    text = value.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    micros = value.microsecond
    if micros == 0:
        return text
    return f"{text}.{micros // 1000:03}" if micros % 1000 == 0 else f"{text}.{micros:06}"


def nested(value):
    if value is None:
        return ""
    if isinstance(value, list):
        return f"[{', '.join(nested(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {nested(item)}' for name, item in value.items())}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def cell(value, letter, rounded=False):
    """A value as the runner prints it."""
    if value is None:
        return "NULL"
    if letter == "B" and isinstance(value, bool):
        return str(value).lower()
    whole = isinstance(value, (int, decimal.Decimal)) and not isinstance(value, bool) and value == int(value)
    if letter == "I" and whole:
        return str(int(value))
    if letter == "R":
        return real(value, rounded)
    if letter == "T" and isinstance(value, (str, uuid.UUID)):
        return str(value) or "(empty)"
    if letter == "D" and isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value.isoformat()
    if letter == "P" and isinstance(value, datetime.datetime):
        return moment(value)
    if letter == "?":
        return nested(value)
    raise Fault(f"{value!r} is no value of a column {letter}")


def rows_as_text(rows, letters, rounded=False):
    for row in rows:
        if len(row) != len(letters):
            raise Fault(f"{len(row)} columns for {letters}")
    return [[cell(value, letter, rounded) for value, letter in zip(row, letters)] for row in rows]


class Record:
    """A block of lines between empty ones, and what its comments say."""

    def __init__(self, lines, line):
        self.line = line
        self.lines = lines
        head = 0
        while head < len(lines) and lines[head].startswith("#"):
            head += 1
        self.said = {}
        last = None
        for comment in lines[:head]:
            found = DIRECTIVE.fullmatch(comment)
            if found:
                last = found[1]
                self.said[last] = found[2]
            elif last and comment.startswith("#   "):
                self.said[last] += "\n" + comment[4:]
            else:
                last = None
        body = lines[head:]
        self.words = body[0].split() if body else []
        self.kind = self.words[0] if self.words else ""
        if self.kind not in ("query", "statement"):
            self.kind = ""
            return
        ends = body.index("----") if "----" in body else len(body)
        self.sql = "\n".join(body[1:ends])
        self.kept = lines[:head] + body[:ends]
        self.fails = self.words[1] == "error"
        self.letters = "" if self.fails or self.kind == "statement" else self.words[1]
        self.sorted = "rowsort" in self.words
        self.by_hand = body[ends + 1:]

    def text_for(self, oracle, scratch):
        """What an oracle runs; None if it has no part."""
        for key in ("oracles", oracle.name):
            said = self.said.get(key, "")
            if said.startswith("none"):
                if not re.match(r"none, \S", said):
                    raise Fault(f"`# {key}: none` without a reason")
                return None
        return self.said.get(oracle.name, self.sql).replace("$__TEST_DIR__", scratch)

    def answers(self, oracles, scratch):
        """Each oracle's rows."""
        answers = {}
        for oracle in oracles:
            sql = self.text_for(oracle, scratch)
            if sql is None:
                continue
            try:
                rows = oracle.run(sql)
            except oracle.Error as error:
                if not self.fails or isinstance(error, oracle.Misread):
                    raise Fault(f"{oracle.name}: {str(error).strip()}") from error
                continue
            if self.fails:
                raise Fault(f"{oracle.name} has no error, but {rows[:3]}")
            answers[oracle.name] = rows
        return answers

    def written(self, oracles, scratch, counts):
        """Its lines, with the answer."""
        if not self.kind:
            return self.lines
        answers = self.answers(oracles, scratch)
        if self.kind == "statement" or self.fails:
            counts["statements" if self.kind == "statement" else "errors"] += 1
            return self.kept + (["----"] + self.by_hand if self.by_hand else [])
        if not answers:
            if "oracles" not in self.said:
                raise Fault("no oracle runs it: say `# oracles: none, WHY`")
            counts["by hand"] += 1
            return self.kept + ["----"] + self.by_hand
        texts = {name: rows_as_text(rows, self.letters) for name, rows in answers.items()}
        order = sorted if self.sorted else list
        if len(texts) == 2 and "values" not in self.said:
            loose = [order(rows_as_text(rows, self.letters, True)) for rows in answers.values()]
            if loose[0] != loose[1]:
                names = " and ".join(f"{name} {order(rows)}" for name, rows in texts.items())
                raise Fault(f"they differ: {names[:2000]}")
        chosen = self.said.get("values", "").split(",")[0] or ("duckdb" if "duckdb" in texts else "postgres")
        if "values" in self.said and len(texts) == 2 and order(texts["duckdb"]) == order(texts["postgres"]):
            raise Fault("`# values:` although they agree")
        if chosen not in texts:
            raise Fault(f"{chosen} does not run it")
        counts["both" if len(texts) == 2 and "values" not in self.said else f"{chosen} alone"] += 1
        return self.kept + ["----"] + [" ".join(row) for row in order(texts[chosen])]


def blocks(text):
    """Records, with the number of their first line."""
    lines, begins = [], 1
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            if not lines:
                begins = number
            lines.append(line.rstrip())
        elif lines:
            yield Record(lines, begins)
            lines = []
    if lines:
        yield Record(lines, begins)


def write_data():
    """The files of data/: of writers that Millpond's own COPY is not like. Needs pyarrow beside DuckDB."""
    import pyarrow
    import pyarrow.parquet

    data = FOLDER / "data"
    data.mkdir(exist_ok=True)
    blooms = duckdb.sql(
        "SELECT i::INT AS i, CASE WHEN i % 5 < 2 THEN CASE WHEN i < 2048 THEN '-0.0'::DOUBLE ELSE 0.0 END "
        "WHEN i % 5 = 3 THEN 'NaN'::DOUBLE ELSE i % 20 END::DOUBLE AS f FROM range(4500) AS r(i)"
    )
    blooms.write_parquet(str(data / "blooms.parquet"), row_group_size=2048, compression="zstd")
    far = ["0001-01-01", "1582-10-04", "1677-09-21", "1883-11-18T17:00:00", "2024-03-10T10:00:00", "2262-04-12", "2263-01-01",
           "9999-12-31T23:59:59.999999"]
    far = pyarrow.array([datetime.datetime.fromisoformat(moment) for moment in far] + [None], pyarrow.timestamp("us"))
    table = pyarrow.table({"i": list(range(len(far))), "t": far})
    pyarrow.parquet.write_table(table, data / "int96.parquet", use_deprecated_int96_timestamps=True, store_schema=False)
    pair = pyarrow.Table.from_arrays([pyarrow.array([1, 2]), pyarrow.array([3, 4])], names=["a", "a"])
    pyarrow.parquet.write_table(pair, data / "same_names.parquet", store_schema=False)
    (data / "nothing.parquet").write_bytes(b"")
    nan, negative = float("nan"), struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    groups = [[-0.0, 1.0, -0.0, None], [0.0, 2.0, 0.0, 0.0], [nan, 1.0, None, 1.0], [negative, 3.0, 3.0, negative], [1.0] * 4]
    floats = [value for group in groups for value in group * 50]
    zeros = pyarrow.table({"i": pyarrow.array(range(1000), pyarrow.int32()), "f": pyarrow.array(floats, pyarrow.float64())})
    paged = {"write_page_index": True, "data_page_size": 256, "write_batch_size": 32}
    for name, options in (("dict", {}), ("plain", {"use_dictionary": False}), ("index", paged)):
        options |= {"row_group_size": 200, "store_schema": False, "compression": "zstd"}
        pyarrow.parquet.write_table(zeros, data / f"zeros_{name}.parquet", **options)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="files to write; all without any")
    parser.add_argument("--check", action="store_true", help="change nothing; fail where a file would change")
    parser.add_argument("--data", action="store_true", help="write the files of data/ instead (with pyarrow)")
    parser.add_argument("--postgres", default=POSTGRES, help="how to reach PostgreSQL")
    arguments = parser.parse_args()
    # Paths of files in statements begin where the tests run.
    arguments.files = [path.resolve() for path in arguments.files]
    os.chdir(FOLDER.parent.parent)
    if arguments.data:
        return write_data()
    bad = 0
    for path in arguments.files or sorted(FOLDER.glob("*.slt")):
        counts = dict.fromkeys(["both", "duckdb alone", "postgres alone", "by hand", "errors", "statements"], 0)
        before = path.read_text(encoding="utf-8")
        after = []
        with tempfile.TemporaryDirectory() as scratch:
            oracles = [Postgres(arguments.postgres), DuckDb()]
            for record in blocks(before):
                try:
                    after.append("\n".join(record.written(oracles, scratch, counts)))
                except Fault as fault:
                    print(f"{path.name}:{record.line}: {fault}", file=sys.stderr)
                    after.append("\n".join(record.lines))
                    bad += 1
                    if record.kind == "statement":
                        sys.exit("what follows needs this statement: nothing is written")
        text = "\n\n".join(after) + "\n"
        if arguments.check and text != before:
            print(f"{path.name} would change", file=sys.stderr)
            bad += 1
        elif not arguments.check:
            path.write_text(text, encoding="utf-8")
        queries = sum(count for kind, count in counts.items() if kind != "statements")
        parts = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        print(f"{path.name}: {queries} queries ({parts})")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
