#!/usr/bin/env python3
"""Tests that `millpond parquet rewrite` keeps what other readers see: types and rows, by pyarrow and DuckDB, column by column.

    files of pyarrow and DuckDB, files of FOLDERs  ──rewrite──►  new files      each read by both, before and after

Run it like this, from the root of the repository (versions as in make.py):

    MILLPOND_KEEP=/tmp/every-type cargo test -p millpond-parquet every_type
    cargo build --release
    /tmp/foreign/bin/python data/foreign/kept.py target/release/millpond parquet rewrite -- /tmp/every-type data/foreign/files

It prints what is not the same, and how many columns are; kept.txt is what it printed. It ends with 1 if values differ.

Other   a column whose type is another one, with equal values: INT96, which DuckDB reads in microseconds, and which is written in
        nanoseconds where they hold it.
"""

import datetime
import decimal
import pathlib
import subprocess
import sys
import tempfile
import uuid

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 2_000
D = decimal.Decimal


def some(values):
    """The values in turn, every seventh row NULL."""
    return [None if row % 7 == 3 else values[row % len(values)] for row in range(ROWS)]


def pyarrow_table():
    day, time = datetime.date, datetime.time
    moments = [datetime.datetime(2024, 2, 29, 12, 30, 15, 123456), datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)]
    seconds = [moment.replace(microsecond=0) for moment in moments]
    nanos = [0, 1, -1, 1_700_000_000_123_456_789, 2**63 - 1]
    columns = {
        "bool": pa.array(some([True, False])),
        "null": pa.nulls(ROWS),
        "string": pa.array(some(["", "é🦆", "x" * 300])),
        "large_string": pa.array(some(["a", "b"]), pa.large_string()),
        "string_view": pa.array(some(["a", "a text that is not short"]), pa.string_view()),
        "binary": pa.array(some([b"", b"\xff\x00"])),
        "large_binary": pa.array(some([b"1", b"22"]), pa.large_binary()),
        "fixed_7": pa.array(some([b"1234567", b"\x00" * 7]), pa.binary(7)),
        "half": pa.array(some([1.5, -0.0, float("inf")]), pa.float16()),
        "float": pa.array(some([1.5, -0.0, float("nan")]), pa.float32()),
        "double": pa.array(some([1.5, -0.0, float("nan")])),
        "date32": pa.array(some([day(1, 1, 1), day(2024, 2, 29), day(9999, 12, 31)])),
        "date64": pa.array(some([day(2024, 2, 29), day(1970, 1, 1)]), pa.date64()),
        "time32_s": pa.array(some([time(0, 0), time(23, 59, 59)]), pa.time32("s")),
        "time32_ms": pa.array(some([time(0, 0), time(23, 59, 59, 999000)]), pa.time32("ms")),
        "time64_us": pa.array(some([time(0, 0), time(23, 59, 59, 999999)]), pa.time64("us")),
        "time64_ns": pa.array(some([0, 86_399_999_999_999]), pa.time64("ns")),
        "duration_ns": pa.array(some([0, -5]), pa.duration("ns")),
        "decimal_4": pa.array(some([D("12.34"), D("-99.99")]), pa.decimal128(4, 2)),
        "decimal_18": pa.array(some([D("1234567890123456.78"), D("-0.01")]), pa.decimal128(18, 2)),
        "decimal_38": pa.array(some([D("1" * 30), D("-3")]), pa.decimal128(38, 3)),
        "decimal_60": pa.array(some([D("1" * 50), D("-3")]), pa.decimal256(60, 3)),
        "uuid": pa.array(some([uuid.UUID(int=5).bytes, uuid.UUID(int=2**127).bytes]), pa.uuid()),
        "json": pa.array(some(['{"a": 1}', "[]"]), pa.json_()),
        "category": pa.array(some(["few", "values"])).dictionary_encode(),
        "list": pa.array(some([[1, None], [], [3]]), pa.list_(pa.int32())),
        "large_list": pa.array(some([["a"], []]), pa.large_list(pa.string())),
        "fixed_list": pa.array(some([[1, 2], [3, 4]]), pa.list_(pa.int64(), 2)),
        "map": pa.array(some([[("k", 1)], []]), pa.map_(pa.string(), pa.int64())),
        "deep": pa.array(some([{"a": [{"b": D("1.5")}]}, {"a": None}]),
                         pa.struct([("a", pa.list_(pa.struct([("b", pa.decimal128(9, 2))])))])),
    }
    for bits in [8, 16, 32, 64]:
        columns[f"int{bits}"] = pa.array(some([-(2**(bits - 1)), 2**(bits - 1) - 1, 5]), getattr(pa, f"int{bits}")())
        columns[f"uint{bits}"] = pa.array(some([0, 2**bits - 1]), getattr(pa, f"uint{bits}")())
    for zone in [None, "UTC", "Europe/Berlin"]:
        name = zone.split("/")[-1].lower() if zone else "local"
        columns[f"s_{name}"] = pa.array(some(seconds), pa.timestamp("s")).cast(pa.timestamp("s", zone))
        columns[f"us_{name}"] = pa.array(some(moments), pa.timestamp("us")).cast(pa.timestamp("us", zone))
        columns[f"ns_{name}"] = pa.array(some(nanos), pa.int64()).cast(pa.timestamp("ns", zone))
    fields = [pa.field(name, array.type, metadata={"PARQUET:field_id": str(index)}) for index, (name, array) in
              enumerate(columns.items())]
    return pa.table(list(columns.values()), schema=pa.schema(fields, metadata={"made by": "kept.py"}))


def make(folder):
    """Writes files; returns their paths."""
    table = pyarrow_table()
    pq.write_table(table, folder / "pyarrow.parquet", row_group_size=700)
    pq.write_table(table, folder / "pyarrow-integers.parquet", store_decimal_as_integer=True, store_schema=False, data_page_version="2.0")
    numbers = pa.table({"a": sorted(range(ROWS)), "b": [row % 3 for row in range(ROWS)]})
    order = [pq.SortingColumn(0), pq.SortingColumn(1, descending=True)]
    pq.write_table(numbers, folder / "pyarrow-sorted.parquet", sorting_columns=order, row_group_size=300)
    texts = [f"category of its own, number {row}" for row in range(60_000)]
    pq.write_table(pa.table({"category": pa.array(texts).dictionary_encode()}), folder / "pyarrow-categories.parquet")
    times = {"int96_near": [datetime.datetime(2024, 2, 29, 1, 2, 3, 4)], "int96_far": [datetime.datetime(9999, 12, 31), datetime.datetime(1, 1, 1)]}
    for stored in [True, False]:
        columns = {name: pa.array(values * 2, pa.timestamp("us")) for name, values in times.items()}
        rows = max(len(column) for column in columns.values())
        columns = {name: pa.concat_arrays([column, pa.nulls(rows - len(column), column.type)]) for name, column in columns.items()}
        pq.write_table(pa.table(columns), folder / f"pyarrow-int96-{'schema' if stored else 'bare'}.parquet",
                       use_deprecated_int96_timestamps=True, store_schema=stored)
    duckdb.sql(f"""COPY (SELECT i::TINYINT t, i::USMALLINT u, i::HUGEINT h, i::UHUGEINT uh, i::FLOAT f, (i % 2 = 0) b, 'x' || i s, ('b' || i)::BLOB bl,
        DATE '2024-02-29' + i::INT d, TIME '12:00:00' + to_seconds(i) ti, (TIME '12:00:00' + to_seconds(i))::TIMETZ tz,
        TIMESTAMP '2024-02-29 01:02:03.456789' + to_days(i::INT) ts, (TIMESTAMP '2024-02-29 01:02:03' + to_days(i::INT))::TIMESTAMPTZ tstz,
        (TIMESTAMP '2024-02-29 01:02:03' + to_days(i::INT))::TIMESTAMP_NS tns, (TIMESTAMP '2024-02-29 01:02:03' + to_days(i::INT))::TIMESTAMP_MS tms,
        (TIMESTAMP '2024-02-29 01:02:03' + to_days(i::INT))::TIMESTAMP_S tss, to_days(i::INT) iv, ('{{"i": ' || i || '}}')::JSON j,
        ('00000000-0000-0000-0000-0000000000' || (10 + i % 90))::UUID id, (CASE i % 2 WHEN 0 THEN 'sad' ELSE 'happy' END)::ENUM('sad', 'happy') mood,
        i::DECIMAL(4, 1) d4, i::DECIMAL(18, 3) d18, i::DECIMAL(38, 5) d38, [i, NULL] l, {{'a': i, 'b': [{{'c': 'x'}}]}} st, MAP {{'k' || i: i}} m
        FROM generate_series(0, 99) g(i)) TO '{folder}/duckdb.parquet' (FORMAT parquet)""")
    return sorted(folder.glob("*.parquet"))


def by_pyarrow(path, int96="ns"):
    """The columns of a file: type, metadata of the field, values."""
    try:
        file = pq.ParquetFile(path, coerce_int96_timestamp_unit=int96)
        table = file.read()
        facts = {field.name: (str(field), str(field.metadata)) for field in table.schema}
        return {name: (*facts[name], values_of(table.column(name))) for name in table.column_names}
    except (pa.ArrowException, OSError) as error:
        return str(error).splitlines()[0]


def values_of(column):
    """Texts of values; times as numbers of nanoseconds, since Python has no objects for some."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind):
        column = column.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64())
        nanos = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[kind.unit]
        return [None if value is None else value * nanos for value in column.to_pylist()]
    if pa.types.is_date(kind):
        return column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64()).to_pylist()
    return [repr(value) for value in column.to_pylist()]


def micros(text):
    """The text of a time without what is below a microsecond: DuckDB reads no more of INT96."""
    return None if text is None else text[:26].rstrip("0").rstrip(".")


def by_duckdb(path):
    try:
        # Times in the name of texts: Python has no instants of all years.
        types = {row[0]: row[1] for row in duckdb.sql(f"DESCRIBE FROM '{path}'").fetchall()}
        found = {}
        for name, kind in types.items():
            quoted = '"' + name.replace('"', '""') + '"'
            found[name] = (kind, "", [row[0] for row in duckdb.sql(f"SELECT {quoted}::VARCHAR FROM '{path}'").fetchall()])
        return found
    except duckdb.Error as error:
        return str(error).splitlines()[0]


def compare(old, new):
    """One word for each column: same, other (type), or DIFFERS."""
    if isinstance(old, str) or isinstance(new, str):
        return {"*": f"not read: {old}" if isinstance(old, str) else f"DIFFERS: {new}"}
    words = {}
    for name, (kind, facts, values) in old.items():
        found = new.get(name, ("none", "", []))
        if (kind, facts) != found[:2]:
            is_same = values == found[2] or (kind, found[0]) == ("TIMESTAMP", "TIMESTAMP_NS") and list(map(micros, values)) == list(map(micros, found[2]))
            words[name] = f"{'other' if is_same else 'DIFFERS'}: {kind} is {found[0]}"
        else:
            words[name] = "same" if values == found[2] else "DIFFERS"
    return words


def footer(path):
    """What a footer says beside the types of columns."""
    metadata = pq.ParquetFile(path).metadata
    sorting = {str(metadata.row_group(group).sorting_columns) for group in range(metadata.num_row_groups)}
    return metadata.num_rows, sorting, metadata.metadata


def main():
    at = sys.argv.index("--")
    command, more = sys.argv[1:at], [pathlib.Path(path) for path in sys.argv[at + 1:]]
    counts, notes = {"same": 0, "other": 0, "not read": 0, "DIFFERS": 0, "refused": 0}, []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "old").mkdir()
        paths = make(folder / "old")
        for path in more:
            paths += sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        for number, path in enumerate(paths):
            new = folder / f"{number}.parquet"
            ended = subprocess.run([*command, str(path), str(new)], capture_output=True, text=True, check=False)
            if ended.returncode != 0:
                counts["refused"] += 1
                notes.append(f"{path.name}: refused: {ended.stderr.split(': ', 2)[-1].strip()}")
                continue
            if footer(path) != footer(new):
                notes.append(f"{path.name}: DIFFERS: {footer(path)} is {footer(new)}")
                counts["DIFFERS"] += 1
            for reader, read in [("pyarrow", by_pyarrow), ("DuckDB", by_duckdb)]:
                words = compare(read(path), read(new))
                if reader == "pyarrow" and any(word.startswith("DIFFERS") for word in words.values()):
                    # INT96 of all years is right in microseconds alone.
                    micro = compare(by_pyarrow(path, "us"), by_pyarrow(new))
                    words = {name: micro[name] if word.startswith("DIFFERS") else word for name, word in words.items()}
                for name, word in words.items():
                    counts[word.split(":")[0]] += 1
                    if word != "same":
                        notes.append(f"{path.name}: {name} by {reader}: {word}")
    print("\n".join(notes))
    print(f"{len(paths)} files by pyarrow {pa.__version__} and DuckDB {duckdb.__version__}; columns: {counts}")
    sys.exit(1 if counts["DIFFERS"] else 0)


main()
