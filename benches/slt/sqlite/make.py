#!/usr/bin/env python3
"""Writes the .slt files beside it: random queries of our own over small tables, with the answers of SQLite.

    python3 make.py            writes the files
    python3 make.py --check    writes nothing, and fails where a file would change

It needs Python's own sqlite3 module of SQLite 3.39 or later. Millpond has no part in it: a query is written whatever Millpond makes of it.

The answers that are checked in are those of SQLite 3.40.1. Letters and words are those of SQLite's own logic tests: I is a whole number, R
has three digits after its point, T is text. A digest stands for an answer of more than 200 values.

The grammar leaves out the differences between the dialects that docs/sql.md names, and nothing else:

    tables      BIGINT and DOUBLE, as INTEGER has 64 bits in SQLite and 32 here; sums and products stay far below 2^31
    division    by a constant other than 0, or by NULLIF(x, 0): SQLite gives NULL for a division by zero
    conditions  are truth values: SQLite takes numbers, too
    NULLs       come first or last in an order because it says which
    text        small letters only: SQLite's LIKE takes A for a
    columns     have names of their own in a SELECT, and stand in GROUP BY if they are outside an aggregate
    floats      are multiples of 1/4, so that the order of a sum does not matter; none is multiplied to a negative zero
"""
import hashlib
import pathlib
import random
import sqlite3
import sys

HERE = pathlib.Path(__file__).parent
SEED = 20_08
QUERIES = 2_000
DIGEST_ABOVE = 200

# Columns of every table: a name, a type of the grammar (i, f, t), a type of SQL.
COLUMNS = [("k", "i", "BIGINT"), ("a", "i", "BIGINT"), ("b", "i", "BIGINT"), ("x", "f", "DOUBLE"), ("s", "t", "TEXT")]
ROWS = {"t1": 40, "t2": 24, "t3": 9, "t4": 0}
LETTERS = {"i": "I", "f": "R", "t": "T", "b": "I"}
WORDS = ["", "a", "ab", "b", "bee", "lake", "mill", "pond", "river", "weir"]


class Maker:
    """Queries over the columns in scope: pairs of an expression and its type."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def one_of(self, *choices):
        return self.random.choice(choices)

    def rows(self, table):
        draw = self.random
        for k in range(ROWS[table]):
            value = lambda made: "NULL" if draw.random() < 0.12 else made
            yield (
                str(k),
                value(str(draw.randint(-9, 20))),
                value(str(draw.randint(0, 5))),
                value(str(draw.randint(-40, 80) / 4)),
                value("'" + draw.choice(WORDS) + "'"),
            )

    def constant(self, kind):
        draw = self.random
        match kind:
            case "i":
                return str(draw.randint(-9, 20))
            case "f":
                return str(draw.randint(-40, 80) / 4)
            case "t":
                return "'" + draw.choice(WORDS) + "'"
            case "b":
                return self.one_of("TRUE", "FALSE")

    def value(self, scope, kind, depth):
        """An expression of the kind."""
        columns = [name for name, of in scope if of == kind]
        if depth == 0 or self.random.random() < 0.25:
            return self.random.choice(columns) if columns and self.random.random() < 0.8 else self.constant(kind)
        inner = lambda of=kind: self.value(scope, of, depth - 1)
        common = [
            lambda: f"CASE WHEN {self.condition(scope, depth - 1)} THEN {inner()} ELSE {inner()} END",
            lambda: f"CASE WHEN {self.condition(scope, depth - 1)} THEN {inner()} END",
            lambda: f"COALESCE({inner()}, {inner()})",
            lambda: f"NULLIF({inner()}, {inner()})",
        ]
        match kind:
            case "i":
                own = [
                    lambda: f"{inner()} {self.one_of('+', '-')} {inner()}",
                    lambda: f"({inner()}) * {self.random.randint(-3, 3)}",
                    lambda: f"({inner()}) {self.one_of('/', '%')} {self.one_of('2', '3', '-4', '7')}",
                    lambda: f"({inner()}) {self.one_of('/', '%')} NULLIF({inner()}, 0)",
                    lambda: f"- ({inner()})",
                    lambda: f"ABS({inner()})",
                    lambda: f"LENGTH({inner('t')})",
                ]
            case "f":
                own = [
                    lambda: f"{inner()} {self.one_of('+', '-')} {inner(self.one_of('i', 'f'))}",
                    lambda: f"({inner()}) * {self.one_of('0.5', '2', '3.0')}",
                    lambda: f"({inner()}) / {self.one_of('2.0', '4', '0.5')}",
                    lambda: f"ABS({inner()})",
                    lambda: f"CAST({inner('i')} AS DOUBLE)",
                ]
            case "t":
                own = [
                    lambda: f"{inner()} || {inner()}",
                    lambda: f"UPPER({inner()})",
                    lambda: f"SUBSTR({inner()}, {self.random.randint(1, 3)}, {self.random.randint(0, 3)})",
                    lambda: f"TRIM({inner()})",
                    lambda: f"REPLACE({inner()}, 'e', 'oo')",
                ]
        return self.random.choice(own if self.random.random() < 0.7 else common)()

    def condition(self, scope, depth):
        kind = self.one_of("i", "i", "f", "t")
        value = lambda: self.value(scope, kind, max(depth - 1, 0))
        inner = lambda: self.condition(scope, depth - 1)
        negated = self.one_of("", "NOT ")
        forms = [
            lambda: f"{value()} {self.one_of('=', '<>', '<', '<=', '>', '>=')} {value()}",
            lambda: f"{value()} {negated}BETWEEN {value()} AND {value()}",
            lambda: f"{value()} {negated}IN ({', '.join(self.constant(kind) for _ in range(self.random.randint(1, 5)))})",
            lambda: f"{value()} {negated}IN ({value()}, {value()})",
            lambda: f"{value()} IS {negated}NULL",
            lambda: f"{self.value(scope, 't', 0)} {negated}LIKE '{self.one_of('%e%', 'b%', '_', '%ll', 'a_', '')}'",
        ]
        if depth > 0:
            forms += 2 * [
                lambda: f"({inner()} AND {inner()})",
                lambda: f"({inner()} OR {inner()})",
                lambda: f"NOT ({inner()})",
            ]
        return self.random.choice(forms)()

    def aggregate(self, scope):
        """An aggregate and its kind."""
        kind = self.one_of("i", "i", "f", "t")
        distinct = self.one_of("", "", "DISTINCT ")
        value = self.value(scope, kind, self.random.randint(0, 1))
        forms = [("COUNT(*)", "i"), (f"COUNT({distinct}{value})", "i"), (f"MIN({value})", kind), (f"MAX({value})", kind)]
        if kind != "t":
            forms += [(f"SUM({distinct}{value})", kind), (f"AVG({distinct}{value})", "f")]
        return self.random.choice(forms)

    # Each of these gives SQL and its letters; the order is that of SQL, or none.

    def conditions(self):
        table = self.one_of("t1", "t1", "t2")
        columns = self.random.sample(COLUMNS, self.random.randint(1, 4))
        sql = f"SELECT {', '.join(name for name, _, _ in columns)} FROM {table} WHERE {self.condition(scope(), 2)}"
        if self.random.random() < 0.3:
            return f"{sql} ORDER BY k{self.one_of('', ' DESC')}", [kind for _, kind, _ in columns], True
        return sql, [kind for _, kind, _ in columns], False

    def expressions(self):
        kinds = [self.one_of("i", "f", "t") for _ in range(self.random.randint(1, 3))]
        values = [f"{self.value(scope(), kind, 2)} AS c{n}" for n, kind in enumerate(kinds)]
        if self.random.random() < 0.2:
            kinds.append("b")
            values.append(f"{self.condition(scope(), 1)} AS c{len(values)}")
        sql = f"SELECT {self.one_of('', '', 'DISTINCT ')}{', '.join(values)} FROM {self.one_of('t1', 't2', 't3')}"
        if self.random.random() < 0.4:
            keys = ", ".join(f"{n + 1} {self.one_of('ASC', 'DESC')} NULLS {self.one_of('FIRST', 'LAST')}" for n in range(len(kinds)))
            return f"{sql} ORDER BY {keys} LIMIT {self.random.randint(1, 12)}", kinds, True
        return sql, kinds, False

    def aggregates(self):
        found = [self.aggregate(scope()) for _ in range(self.random.randint(1, 4))]
        values = ", ".join(f"{sql} AS c{n}" for n, (sql, _) in enumerate(found))
        condition = f" WHERE {self.condition(scope(), 1)}" if self.random.random() < 0.6 else ""
        return f"SELECT {values} FROM {self.one_of('t1', 't1', 't2', 't4')}{condition}", [kind for _, kind in found], False

    def groups(self):
        keys = self.random.sample([("a", "i"), ("b", "i"), ("s", "t"), ("a % 3", "i"), ("x > 2", "b"), ("LENGTH(s)", "i")], self.random.randint(1, 2))
        found = [self.aggregate(scope()) for _ in range(self.random.randint(1, 3))]
        values = [f"{sql} AS c{n}" for n, (sql, _) in enumerate(keys + found)]
        sql = f"SELECT {', '.join(values)} FROM {self.one_of('t1', 't2')}"
        if self.random.random() < 0.4:
            sql += f" WHERE {self.condition(scope(), 1)}"
        sql += f" GROUP BY {', '.join(sql for sql, _ in keys)}"
        if self.random.random() < 0.4:
            aggregate, kind = self.aggregate(scope())
            sql += f" HAVING {aggregate} {self.one_of('<', '>', '<>')} {self.constant(kind)}"
        return sql, [kind for _, kind in keys + found], False

    def joins(self):
        tables = self.random.sample(["t1", "t2", "t3", "t3", "t4"], self.random.randint(2, 3))
        names = [f"j{n}" for n in range(len(tables))]
        sql = f"{tables[0]} AS j0"
        for n in range(1, len(tables)):
            key = self.one_of("k", "a", "b", "s")
            on = f"j{n}.{key} = j{self.random.randrange(n)}.{key}"
            if self.random.random() < 0.3:
                on += f" AND {self.condition(scope(f'j{n}'), 0)}"
            sql += f" {self.one_of('', '', 'LEFT ', 'RIGHT ', 'FULL ')}JOIN {tables[n]} AS j{n} ON {on}"
        both = [column for name in names for column in scope(name)]
        chosen = self.random.sample(both, self.random.randint(1, 4))
        if self.random.random() < 0.5:
            found = [self.aggregate(both) for _ in range(2)]
            values = ", ".join(f"{sql} AS c{n}" for n, (sql, _) in enumerate(found))
            kinds = [kind for _, kind in found]
        else:
            values = ", ".join(f"{name} AS c{n}" for n, (name, _) in enumerate(chosen))
            kinds = [kind for _, kind in chosen]
        condition = f" WHERE {self.condition(both, 1)}" if self.random.random() < 0.5 else ""
        return f"SELECT {values} FROM {sql}{condition}", kinds, False

    def subqueries(self):
        inner = scope("i")
        kind, name = self.one_of(("i", "k"), ("i", "a"), ("i", "b"), ("t", "s"), ("f", "x"))
        of = self.one_of("t2", "t3", "t4")
        condition = self.condition(inner, 1)
        negated = self.one_of("", "NOT ")
        match self.random.randrange(5):
            case 0:
                where = f"o.{name} {negated}IN (SELECT i.{name} FROM {of} AS i WHERE {condition})"
            case 1:
                where = f"{negated}EXISTS (SELECT 1 FROM {of} AS i WHERE i.{name} = o.{name} AND {condition})"
            case 2:
                where = f"o.{name} {self.one_of('<', '>=', '<>')} (SELECT {self.one_of('MIN', 'MAX')}(i.{name}) FROM {of} AS i WHERE {condition})"
            case 3:
                where = f"o.k < (SELECT COUNT(*) FROM {of} AS i WHERE i.{name} = o.{name})"
            case 4:
                return self.set_operation()
        return f"SELECT o.k, o.{name} AS c1 FROM t1 AS o WHERE {where}", ["i", kind], False

    def set_operation(self):
        kinds = [self.one_of("i", "f", "t") for _ in range(self.random.randint(1, 2))]
        parts = []
        for table in self.random.sample(["t1", "t2", "t3", "t4"], self.random.randint(2, 3)):
            values = ", ".join(f"{self.value(scope(), kind, 0)} AS c{n}" for n, kind in enumerate(kinds))
            parts.append(f"SELECT {values} FROM {table} WHERE {self.condition(scope(), 0)}")
        sql = parts[0]
        # One operator throughout, as SQLite gives all of them the same precedence.
        operator = self.one_of("UNION", "UNION ALL", "EXCEPT", "INTERSECT")
        return f" {operator} ".join(parts), kinds, False


def scope(name=None):
    return [(f"{name}.{column}" if name else column, kind) for column, kind, _ in COLUMNS]


def shown(value, letter):
    if value is None:
        return "NULL"
    match letter:
        case "I":
            return str(int(value))
        case "R":
            return f"{float(value):.3f}"
        case _:
            return str(value) or "(empty)"


def answer(database, sql, letters, ordered):
    rows = [[shown(value, letter) for value, letter in zip(row, letters, strict=True)] for row in database.execute(sql)]
    if not ordered:
        rows.sort(key=lambda row: [value.encode() for value in row])
    values = [value for row in rows for value in row]
    if len(values) > DIGEST_ABOVE:
        digest = hashlib.md5("".join(value + "\n" for value in values).encode()).hexdigest()
        return [f"{len(values)} values hashing to {digest}"]
    return values


def file(topic, number, queries):
    maker = Maker(SEED + number)
    database = sqlite3.connect(":memory:")
    records = ["# Written by make.py: do not edit.", "", "control resultmode valuewise", "", f"hash-threshold {DIGEST_ABOVE}", ""]

    def statement(sql):
        database.execute(sql)
        records.extend(["statement ok", sql, ""])

    for table in ROWS:
        statement(f"CREATE TABLE {table}({', '.join(f'{name} {sql}' for name, _, sql in COLUMNS)})")
        rows = [f"({', '.join(row)})" for row in maker.rows(table)]
        if rows:
            statement(f"INSERT INTO {table} VALUES {', '.join(rows)}")
    for _ in range(queries):
        sql, kinds, ordered = getattr(maker, topic)()
        letters = "".join(LETTERS[kind] for kind in kinds)
        records += [f"query {letters} {'nosort' if ordered else 'rowsort'}", sql, "----", *answer(database, sql, letters, ordered), ""]
    return "\n".join(records)


def main():
    topics = ["conditions", "expressions", "aggregates", "groups", "joins", "subqueries"]
    changed = []
    for number, topic in enumerate(topics):
        queries = QUERIES // len(topics) + (number < QUERIES % len(topics))
        text, path = file(topic, number, queries), HERE / f"{topic}.slt"
        if not path.exists() or path.read_text() != text:
            changed.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text)
    print(f"SQLite {sqlite3.sqlite_version}: {', '.join(changed) or 'no file'} changed")
    sys.exit("--check" in sys.argv and bool(changed))


if __name__ == "__main__":
    main()
