"""The values of the files that make.py writes: a function of (kind, distribution, row), as Arrow tables."""

import decimal
import struct

import pyarrow as pa

MASK = (1 << 64) - 1
NULLS = ["required", "none", "seventh", "half", "all", "runs", "first"]
DISTRIBUTIONS = ["constant", "sorted", "repeats", "few", "random", "extremes"]

INTEGER_BITS = {"int8": (8, True), "int16": (16, True), "int32": (32, True), "int64": (64, True),
                "uint8": (8, False), "uint16": (16, False), "uint32": (32, False), "uint64": (64, False)}
TYPES = {
    "bool": pa.bool_(), "float16": pa.float16(), "float": pa.float32(), "double": pa.float64(),
    "date32": pa.date32(), "time32_ms": pa.time32("ms"), "time64_us": pa.time64("us"), "time64_ns": pa.time64("ns"),
    "ts_ms": pa.timestamp("ms"), "ts_us": pa.timestamp("us"), "ts_ns": pa.timestamp("ns"),
    "ts_us_utc": pa.timestamp("us", tz="UTC"), "ts_int96": pa.timestamp("ns"),
    "ascii": pa.string(), "unicode": pa.string(), "binary": pa.binary(), "fixed7": pa.binary(7),
    "dec9": pa.decimal128(9, 2), "dec9_int": pa.decimal128(9, 2), "dec18": pa.decimal128(18, 4),
    "dec18_int": pa.decimal128(18, 4), "dec38": pa.decimal128(38, 10),
    **{kind: getattr(pa, kind)() for kind in INTEGER_BITS},
}
FLOAT_EXTREMES = [float("nan"), -0.0, 0.0, float("inf"), float("-inf"), 65504.0, -65504.0, 6e-8, 1.0]
WORDS = {
    "ascii": ["", "a", " ", "zz" * 40, "key", "key-1", "\x00", "~" * 300],
    "unicode": ["", "é", "水と", "🦆🦆🦆", "z\u0301", "\U0010ffff", "ß" * 90, "\x00é"],
    "binary": [b"", b"\x00", b"\xff" * 33, b"\x80\x00\x01", b"PAR1", b"\x00" * 100, bytes(range(256)), b"\xfe"],
}


def word(seed, index):
    """64 mixed bits of a text and a number (FNV-1a, then the SplitMix64 finaliser)."""
    state = 0xCBF29CE484222325
    for byte in seed.encode():
        state = ((state ^ byte) * 0x100000001B3) & MASK
    state = (state + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def is_null(pattern, row, num_rows):
    if pattern in ("required", "none"):
        return False
    if pattern == "seventh":
        return row % 7 == 3
    if pattern == "half":
        return word("null", row) % 2 == 0
    if pattern == "all":
        return True
    if pattern == "runs":
        return (row % 409) < 200 or (row % 409) in (250, 251, 300)
    return row < min(100, num_rows)  # first: the first page, where pages have 100 rows


def integer_range(kind):
    if kind in INTEGER_BITS:
        bits, signed = INTEGER_BITS[kind]
        return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    if kind.startswith("dec"):
        digits = int(kind[3:].split("_")[0])
        return 1 - 10**digits, 10**digits - 1
    day = {"time32_ms": 86_400_000, "time64_us": 86_400_000_000, "time64_ns": 86_400_000_000_000}
    if kind in day:
        return 0, day[kind] - 1
    if kind == "date32":
        return -719_162, 2_932_896  # the years 1 … 9999
    # Timestamps: the years 1 … 9999, nanoseconds as far as 64 bits go, less a day for INT96.
    scale = {"ts_ms": 1_000, "ts_us": 1_000_000, "ts_us_utc": 1_000_000}.get(kind)
    return (-62_135_596_800 * scale, 253_402_300_799 * scale) if scale else (-(1 << 63) + 10**14, (1 << 63) - 10**14)


def integer(kind, distribution, row, num_rows):
    low, high = integer_range(kind)
    span = high - low + 1
    if distribution == "constant":
        return low + span // 3
    if distribution == "sorted":
        return low + span // 4 + min(row, span // 2) * max(1, min(1_000, span // (4 * max(num_rows, 1))))
    if distribution == "repeats":
        return low + span // 4 + min(row // 13, span // 2)
    if distribution == "few":
        return low + word("few", word(kind, row) % 6) % span
    if distribution == "random":
        return low + ((word(kind, row) << 64) | word(kind + "low", row)) % span
    return [low, high, low + 1, high - 1, max(low, 0), min(high, max(low, -1))][word(kind, row) % 6]


def number(kind, distribution, row):
    bits = {"float16": "<e", "float": "<f", "double": "<d"}[kind]
    if distribution == "constant":
        return 2.5
    if distribution == "sorted":
        return row * 0.25
    if distribution == "repeats":
        return (row // 13) * 0.5
    if distribution == "few":
        return [0.0, 1.5, -2.25, 100.0, 1e4, -1e-3][word(kind, row) % 6]
    if distribution == "random":
        return struct.unpack(bits, word(kind, row).to_bytes(8, "little")[: struct.calcsize(bits)])[0]
    return FLOAT_EXTREMES[word(kind, row) % len(FLOAT_EXTREMES)]


def text(kind, distribution, row):
    words = WORDS[kind]
    as_kind = (lambda string: string.encode()) if kind == "binary" else (lambda string: string)
    if distribution == "constant":
        return words[3]
    if distribution == "sorted":
        return as_kind(f"customer#{row:09}")
    if distribution == "repeats":
        return as_kind(f"customer#{row // 13:09}")
    if distribution == "few":
        return words[word(kind, row) % 5]
    if distribution == "extremes":
        return words[word(kind, row) % len(words)]
    state = word(kind, row)
    length = state % 24 if state % 50 else state // 64 % 200
    return as_kind("".join(chr(97 + word(kind, row * 256 + at) % 26) for at in range(length)))


def value(kind, distribution, row, num_rows):
    if kind == "bool":
        return {"constant": True, "sorted": row * 2 >= num_rows, "repeats": row // 13 % 2 == 0}.get(
            distribution, word(kind, row) % (9 if distribution == "few" else 2) == 0)
    if kind in ("float16", "float", "double"):
        return number(kind, distribution, row)
    if kind in WORDS:
        return text(kind, distribution, row)
    if kind == "fixed7":
        if distribution == "random":
            return word(kind, row).to_bytes(8, "big")[:7]
        return {"constant": b"\x00abcdef", "sorted": row.to_bytes(7, "big"), "few": bytes([word(kind, row) % 6] * 7),
                "repeats": (row // 13).to_bytes(7, "big")}.get(distribution, bytes([word(kind, row) % 2 * 255] * 7))
    if kind.startswith("dec"):
        unscaled = integer(kind, distribution, row, num_rows)
        return decimal.Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -TYPES[kind].scale))
    return integer(kind, distribution, row, num_rows)


def arrow_table(kind, distribution, nulls, num_rows):
    """`row_id` and `value`, whose field is not nullable when the pattern is "required"."""
    cells = [None if is_null(nulls, row, num_rows) else value(kind, distribution, row, num_rows)
             for row in range(num_rows)]
    if kind in ("date32", "time32_ms") or pa.types.is_temporal(TYPES[kind]):
        storage = pa.int32() if TYPES[kind].bit_width == 32 else pa.int64()
        column = pa.array(cells, storage).cast(TYPES[kind])
    else:
        column = pa.array(cells, TYPES[kind])
    fields = [pa.field("row_id", pa.int32(), nullable=False),
              pa.field("value", TYPES[kind], nullable=nulls != "required")]
    return pa.table([pa.array(range(num_rows), pa.int32()), column], schema=pa.schema(fields))
