#!/usr/bin/env python3
"""Writes small flat Parquet files by other writers: pyarrow, DuckDB and, where it is installed, fastparquet.

    kinds × encodings × (codec, version, pages, NULLs, …)  ──►  FOLDER/pyarrow-0000-….parquet, duckdb-0000-…, …

Run it like this, from the root of the repository:

    python3 -m venv /tmp/foreign
    /tmp/foreign/bin/pip install pyarrow==26.0.1 duckdb==2.0.0 fastparquet==2026.9.0 pandas==3.1.1 numpy==2.4.6
    /tmp/foreign/bin/python data/foreign/make.py /tmp/foreign-files            # all files
    /tmp/foreign/bin/python data/foreign/make.py --small data/foreign/files    # the files that are checked in

Same    the same versions write the same bytes; values are a function of (kind, distribution, row).
Order   each file has a column `row_id` that counts from zero, so that answers can be compared in an order.
Small   --small picks files that together have every feature, at most SMALL_FILES and SMALL_BYTES.
"""

import argparse
import pathlib
import shutil
import sys
import tempfile

import values

SMALL_FILES = 64
SMALL_BYTES = 600_000
SMALL_FILE_BYTES = 18_000

CODECS = ["none", "snappy", "gzip", "zstd", "brotli", "lz4"]
ROWS = [1_000, 3_001, 1_000, 33, 1_000, 2_500, 1, 1_000, 3_001, 0, 1_000]

# The encodings that pyarrow writes for each kind, beside the dictionary.
INTEGERS = ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]
FLOATS = ["PLAIN", "BYTE_STREAM_SPLIT"]
STRINGS = ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
FIXED = ["PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"]
PYARROW_KINDS = {
    "bool": ["PLAIN"],
    **{kind: INTEGERS for kind in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]},
    **{kind: INTEGERS for kind in ["date32", "time32_ms", "time64_us", "time64_ns"]},
    **{kind: INTEGERS for kind in ["ts_ms", "ts_us", "ts_ns", "ts_us_utc"]},
    "ts_int96": ["PLAIN"],
    "float16": FIXED,
    "float": FLOATS,
    "double": FLOATS,
    "ascii": STRINGS,
    "unicode": STRINGS,
    "binary": STRINGS,
    "fixed7": FIXED,
    **{kind: FIXED for kind in ["dec9", "dec18", "dec38"]},
    **{kind: INTEGERS for kind in ["dec9_int", "dec18_int"]},
}


class Pick:
    """Walks through lists so that each value comes up equally often, in an order that depends on the seed only."""

    def __init__(self, seed):
        self.seed, self.turns = seed, {}

    def from_list(self, name, choices):
        turn = self.turns.get(name, 0)
        self.turns[name] = turn + 1
        lap, place = divmod(turn, len(choices))
        order = sorted(range(len(choices)), key=lambda index: values.word(f"{self.seed}/{name}/{lap}", index))
        return choices[order[place]]


def pyarrow_cases():
    """Each kind with each of its encodings, four times or more; all other choices in turn."""
    pick, cases = Pick("pyarrow"), []
    units = [(kind, encoding) for kind in PYARROW_KINDS for encoding in ["dictionary"] + PYARROW_KINDS[kind]]
    units = [unit for unit in units if unit != ("bool", "dictionary")]
    for _lap in range(5):
        for kind, encoding in units:
            cases.append({
                "writer": "pyarrow", "kind": kind, "encoding": encoding,
                "codec": pick.from_list("codec", CODECS),
                "page": pick.from_list(f"page/{encoding}", ["1.0", "2.0"]),
                "format": pick.from_list("format", ["1.0", "2.4", "2.6"]),
                "nulls": pick.from_list(f"nulls/{encoding}", values.NULLS),
                "values": pick.from_list(f"values/{encoding}", values.DISTRIBUTIONS),
                "rows": pick.from_list("rows", ROWS),
                "page_size": pick.from_list("page_size", [None, 512, 4_096]),
                "page_rows": pick.from_list("page_rows", [None, 100]),
                "group": pick.from_list("group", [None, 333, 1_024]),
                "dict_limit": pick.from_list("dict_limit", [None, 512]) if encoding == "dictionary" else None,
                "index": pick.from_list("index", [False, True]),
                "crc": pick.from_list("crc", [False, True, False]),
                "stats": pick.from_list("stats", [True, True, False]),
            })
    return cases


def write_pyarrow(case, path):
    import pyarrow.parquet as pq

    table = values.arrow_table(case["kind"], case["values"], case["nulls"], case["rows"])
    dictionary = case["encoding"] == "dictionary"
    column_encoding = None if dictionary else {"value": case["encoding"], "row_id": "PLAIN"}
    bounded = case["page_size"] or case["page_rows"] or case["dict_limit"]
    pq.write_table(
        table, path,
        version=case["format"], data_page_version=case["page"], compression=case["codec"],
        use_dictionary=["value"] if dictionary else False, column_encoding=column_encoding,
        dictionary_pagesize_limit=case["dict_limit"],
        data_page_size=case["page_size"], max_rows_per_page=case["page_rows"],
        write_batch_size=20 if bounded else None, row_group_size=case["group"],
        store_decimal_as_integer=case["kind"].endswith("_int"),
        use_deprecated_int96_timestamps=case["kind"] == "ts_int96",
        write_page_index=case["index"], write_page_checksum=case["crc"], write_statistics=case["stats"],
        # Before 2.6 a file has no nanoseconds: they become microseconds there.
        coerce_timestamps="us" if case["kind"] == "ts_ns" and case["format"] != "2.6" else None,
        allow_truncated_timestamps=True,
    )


# SQL over `i`, the row number, and `r`, a random number of 0 … 2³² − 1 that depends on the row only.
DUCKDB_KINDS = {
    "bool": "r % 3 = 0",
    "int8": "(r % 256 - 128)::TINYINT",
    "int16": "(r % 65536 - 32768)::SMALLINT",
    "int32": "(r - 2147483648)::INTEGER",
    "int64": "(r - 2147483648) * 4294967296 + i",
    "uint8": "(r % 256)::UTINYINT",
    "uint32": "r::UINTEGER",
    "uint64": "r::UBIGINT * 4294967296::UBIGINT + i::UBIGINT",
    "int32_sorted": "(i * 3)::INTEGER",
    "int64_few": "(r % 7) * 1000000007",
    "date32": "DATE '1992-01-01' + (r % 20000)::INTEGER",
    "time": "TIME '00:00:00' + to_microseconds((r * 20) % 86400000000)",
    "ts_us": "make_timestamp(r * 400000 + i)",
    "ts_ms": "make_timestamp(r * 400000)::TIMESTAMP_MS",
    "ts_ns": "make_timestamp_ns(r * 400000001)",
    "ts_s": "make_timestamp(r * 400000)::TIMESTAMP_S",
    "ts_utc": "make_timestamptz(r * 400000)",
    "float": "CASE r % 13 WHEN 0 THEN 'nan' WHEN 1 THEN '-0.0' WHEN 2 THEN 'inf' ELSE (r / 1024)::VARCHAR END::FLOAT",
    "double": "CASE r % 13 WHEN 0 THEN 'nan' WHEN 1 THEN '-inf' ELSE (r / 1000)::VARCHAR END::DOUBLE",
    "dec4": "((r % 10000) / 100)::DECIMAL(4, 2)",
    "dec9": "((r % 1000000000) / 100)::DECIMAL(9, 2)",
    "dec18": "((r - 2147483648) / 100)::DECIMAL(18, 2)",
    "dec38": "((r - 2147483648)::DECIMAL(28, 0) * 10000000000000000 / 1)::DECIMAL(38, 4)",
    "ascii": "'key-' || r",
    "ascii_few": "['', 'a', 'garden', 'kitchen and living', 'x'][r % 5 + 1]",
    "ascii_sorted": "'customer#' || lpad(i::VARCHAR, 9, '0')",
    "unicode": "repeat(['é', '水', '🦆', 'z'][r % 4 + 1], r % 11)",
    "text": "repeat('the quick brown fox ', r % 20)",
    "binary": "encode(chr((r % 255 + 1)::INTEGER) || r)",
    "uuid": "('00000000-0000-4000-8000-' || lpad(r::VARCHAR, 12, '0'))::UUID",
    "interval_s": "to_seconds(r % 1000)",
    "enum": "['red', 'green', 'blue'][r % 3 + 1]::ENUM('red', 'green', 'blue')",
}
DUCKDB_NULLS = {
    "none": "false", "seventh": "i % 7 = 3", "half": "(r // 16) % 2 = 0", "all": "true",
    "runs": "(i // 100) % 2 = 0", "first": "i < 2048",
}


def duckdb_cases():
    """Each kind five times; rows beyond 2,048 have several row groups, since DuckDB rounds groups up to that."""
    pick, cases = Pick("duckdb"), []
    for _lap in range(5):
        for kind in DUCKDB_KINDS:
            version = pick.from_list(f"version/{kind}", ["V1", "V2"])
            cases.append({
                "writer": "duckdb", "kind": kind, "encoding": version,
                "codec": pick.from_list("codec", CODECS + ["lz4_raw"]),
                "nulls": pick.from_list(f"nulls/{version}", list(DUCKDB_NULLS)),
                "rows": pick.from_list("rows", [1_000, 2_500, 33, 5_000, 0, 1_000, 1, 2_500]),
                "group": pick.from_list("group", [None, 2_048]),
                "dict_limit": pick.from_list("dict_limit", [None, 1, None, 5_000]),
                "page_size": pick.from_list("page_size", [None, None, 1_024]),
                "bloom": pick.from_list("bloom", [True, False]),
                "int96": kind.startswith("ts_") and _lap == 4,
            })
    return cases


def write_duckdb(case, path):
    import duckdb

    options = [f"PARQUET_VERSION {case['encoding']}", f"COMPRESSION {case['codec'].replace('none', 'uncompressed')}"]
    if case["group"]:
        options.append(f"ROW_GROUP_SIZE {case['group']}")
    if case["dict_limit"]:
        options.append(f"DICTIONARY_SIZE_LIMIT {case['dict_limit']}")
    if case["page_size"]:
        options.append(f"DATA_PAGE_SIZE_LIMIT {case['page_size']}")
    if case["int96"]:
        options.append("WRITE_TIMESTAMP_AS_INT96 true")
    options.append(f"WRITE_BLOOM_FILTER {str(case['bloom']).lower()}")
    database = duckdb.connect()
    database.execute("SET threads = 1; SET TimeZone = 'UTC'")
    database.execute(
        f"""COPY (
            SELECT i::INTEGER AS row_id,
                   CASE WHEN {DUCKDB_NULLS[case['nulls']]} THEN NULL ELSE {DUCKDB_KINDS[case['kind']]} END AS value
            FROM (SELECT i, (i * 2654435761 + (i * i) % 1000003 * 40503) % 4294967296 AS r
                  FROM range({case['rows']}) numbers(i))
            ORDER BY i
        ) TO '{path}' (FORMAT parquet, {', '.join(options)})"""
    )
    database.close()


def fastparquet_cases():
    pick, cases = Pick("fastparquet"), []
    for _lap in range(3):
        for kind in ["bool", "int8", "int32", "int64", "uint32", "float", "double", "ascii", "unicode", "binary",
                     "ts_us", "ts_int96", "category"]:
            nullable = kind not in ["bool", "int8", "int32", "int64", "uint32"]
            cases.append({
                "writer": "fastparquet", "kind": kind, "encoding": "dictionary" if kind == "category" else "PLAIN",
                "codec": pick.from_list("codec", CODECS),
                "nulls": pick.from_list("nulls", ["none", "seventh", "half", "runs"]) if nullable else "required",
                "values": pick.from_list("values", ["few", "random", "sorted"]),
                "rows": pick.from_list("rows", [33, 1_000, 2_500, 1]),
                "group": pick.from_list("group", [None, 400]),
            })
    return cases


def write_fastparquet(case, path):
    import fastparquet

    kind = {"category": "ascii", "ts_int96": "ts_us"}.get(case["kind"], case["kind"])
    frame = values.arrow_table(kind, case["values"], case["nulls"], case["rows"]).to_pandas()
    if case["kind"] == "category":
        frame["value"] = frame["value"].astype("category")
    elif kind in ("ascii", "unicode", "binary"):
        frame["value"] = frame["value"].astype("object").where(frame["value"].notna(), None)
    encoding = {"ascii": "utf8", "unicode": "utf8", "binary": "bytes"}.get(kind, "infer")
    fastparquet.write(
        str(path), frame, compression=None if case["codec"] == "none" else case["codec"].upper(),
        row_group_offsets=case["group"] or 50_000_000, write_index=False,
        object_encoding={"row_id": "infer", "value": "infer" if case["kind"] == "category" else encoding},
        times="int96" if case["kind"] == "ts_int96" else "int64",
        has_nulls=["value"] if case["nulls"] != "required" else False,
    )


def name_of(number, case):
    words = [case["writer"], f"{number:04}", case["kind"], case["encoding"].lower(), case["codec"]]
    words += [f"page{case['page'][0]}", f"v{case['format']}"] if "page" in case else []
    words += [f"nulls_{case['nulls']}"] + ([case["values"]] if "values" in case else []) + [f"rows{case['rows']}"]
    for option, text in [("page_size", "page{}b"), ("page_rows", "page{}r"), ("group", "group{}"),
                         ("dict_limit", "dict{}")]:
        words += [text.format(case[option])] if case.get(option) else []
    words += [option for option in ("index", "crc", "int96") if case.get(option)]
    return "-".join(words) + ".parquet"


def features(case):
    """What a file shows that a reader may get wrong, as pairs; --small wants each at least once."""
    has = {(case["writer"], option, value) for option, value in case.items() if option != "writer"}
    has.add(("any", case["writer"], case["kind"], case["encoding"]))
    if case["kind"] in ("int32", "uint32") and case["encoding"] == "V2" and case["nulls"] != "all":
        has.add(("duckdb", "deltas of an INT32 that need 33 bits", case["kind"]))
    if "page" in case:
        has |= {("page", case["encoding"], case["page"]), ("nulls", case["page"], case["nulls"])}
    return has


def choose_small(files):
    """Takes the file with the most features that no taken file has, until the count or the bytes are reached."""
    chosen, seen, num_bytes = [], set(), 0

    def gain(entry):
        path, case, size = entry
        new = len(features(case) - seen)
        # Files with many rows and with values show more than their features say.
        return new + (2 if case["rows"] >= 1_000 else 0) - (4 if case["nulls"] == "all" else 0), -abs(size - 5_000), path.name

    candidates = [(path, case, path.stat().st_size) for path, case in files]
    candidates = [entry for entry in candidates if entry[2] <= SMALL_FILE_BYTES and entry[1]["rows"] >= 33]
    while candidates and len(chosen) < SMALL_FILES:
        best = max(candidates, key=gain)
        candidates.remove(best)
        if num_bytes + best[2] > SMALL_BYTES:
            continue
        chosen.append(best[0])
        seen |= features(best[1])
        num_bytes += best[2]
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--small", action="store_true", help="write only the subset that is checked in")
    arguments = parser.parse_args()

    writers = [(pyarrow_cases, write_pyarrow), (duckdb_cases, write_duckdb)]
    try:
        import fastparquet  # noqa: F401  (only asked for)
        writers.append((fastparquet_cases, write_fastparquet))
    except ImportError:
        print("fastparquet is not installed: its files are left out", file=sys.stderr)

    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) if arguments.small else arguments.folder
        files, refused = [], []
        for cases, write in writers:
            for number, case in enumerate(cases()):
                path = folder / name_of(number, case)
                try:
                    write(case, path)
                    files.append((path, case))
                except Exception as error:  # a writer may refuse a combination; it is printed, never hidden
                    path.unlink(missing_ok=True)
                    refused.append(f"{path.name}: {str(error).splitlines()[0][:120]}")
        written = [path for path, _ in files]
        if arguments.small:
            written = [pathlib.Path(shutil.copy(path, arguments.folder)) for path in choose_small(files)]
        num_bytes = sum(path.stat().st_size for path in written)
    print(f"{len(written)} files, {num_bytes} bytes, in {arguments.folder}")
    for line in refused:
        print(f"refused {line}")


if __name__ == "__main__":
    main()
