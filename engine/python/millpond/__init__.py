"""SQL over Parquet and data frames on an NVIDIA GPU; on the CPU where there is none.

    import millpond

    con = millpond.connect()                        # device="auto"
    con.register("t", frame)                        # pandas, Polars, pyarrow, DuckDB
    result = con.sql("SELECT k, sum(v) FROM t WHERE v > $least GROUP BY k", {"least": 3})
    result.to_polars(); print(result.report)
"""

import atexit as _atexit
import datetime as _datetime
import decimal as _decimal
import json as _json
import sys as _sys
import threading as _threading


def _is_main_interpreter():
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters = __import__(name)
        except ImportError:
            continue
        return interpreters.get_current() == interpreters.get_main()
    return True


if not _is_main_interpreter():
    raise ImportError("millpond runs in the main interpreter of a process: import it there, or in a process of its own")

from ._native import VERSION as __version__
from ._native import DeviceError, Error, FileError, UsageError
from . import _native

__all__ = [
    "Connection",
    "DeviceError",
    "Error",
    "FileError",
    "Report",
    "Result",
    "UsageError",
    "connect",
    "sql",
]

_atexit.register(_native.leave)


def connect(device=None, allocator=None, *, fallback=None, settings=None):
    """Opens a session.

    device     auto (the default: a GPU where there is one, else the CPU), cuda, cuda:N, sim or cpu
    allocator  where device memory comes from: cuda, cuda_async_default, cuda_async, caching, arena or binning
    fallback   what a part of a query does that cannot run on the device: allow, warn or error
    settings   a dict of options, such as {"millpond.cache": "off", "datafusion.execution.batch_size": 4096}

    Sessions of one process with the same device and options share the device, and columns that stay there.
    Variables of the environment (MILLPOND_DEVICE and so on) set what is not given.
    """
    return Connection(device, allocator, fallback=fallback, settings=settings)


class Connection:
    """A session: tables, options and a device. Threads may share it; `another()` is one beside it."""

    def __init__(self, device=None, allocator=None, *, fallback=None, settings=None, _session=None):
        if _session is None:
            chosen = None if device is None else str(device)
            pairs = [f"{key}={_setting(value)}" for key, value in dict(settings or {}).items()]
            _session = _native.Session(chosen, allocator, fallback, pairs)
        self._session = _session

    @property
    def device(self):
        """The device's name; None on the CPU."""
        return self._session.device

    @property
    def note(self):
        """Why queries run on the CPU although a device was welcome; None where they do not."""
        return self._session.note

    def sql(self, text, params=None):
        """Runs statements and gives the result of the last one.

        params has the values of `$1`, `$2` (a list or tuple) or of `$name` (a dict) of one statement.
        """
        if params is not None:
            if isinstance(params, dict):
                params = {str(name).lstrip("$"): _parameter(value) for name, value in params.items()}
            elif isinstance(params, (list, tuple)):
                params = [_parameter(value) for value in params]
            else:
                raise UsageError(f"params takes a list, a tuple or a dict, not a {type(params).__qualname__}")
        return Result(self._session.sql(text, params))

    def register(self, name, frame):
        """Makes a frame a table, in the place of one of that name; gives the connection back.

        Frames with `__arrow_c_stream__` or `__arrow_c_array__` go in: of Polars, pyarrow, DuckDB, arro3 and others without a copy, and
        their columns stay on the device. Frames of pandas lie in memory that may be written: each query reads them anew.
        """
        live = _is_pandas(frame)
        if live and not hasattr(frame, "__arrow_c_stream__"):
            frame = _PandasStream(frame)
        if not hasattr(frame, "__arrow_c_stream__") and not hasattr(frame, "__arrow_c_array__"):
            raise UsageError(
                f"a {type(frame).__module__}.{type(frame).__qualname__} is no frame: it has neither __arrow_c_stream__ nor "
                "__arrow_c_array__; make a pyarrow.Table or a polars.DataFrame of it"
            )
        self._session.register(name, _readable(frame), live)
        return self

    def unregister(self, name):
        """Forgets a table; False if there is none of that name."""
        return self._session.unregister(name)

    def another(self):
        """Another session on the same device: the same options, no tables."""
        return Connection(_session=self._session.another())

    def close(self):
        """Closes the session. The device is closed with its last one."""
        self._session.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        try:
            return f"<millpond.Connection on {self.device or 'the CPU'}>"
        except Error:
            return "<millpond.Connection, closed>"


class Result:
    """The answer of a statement. It is read by the first thing that asks for its rows, and kept then; `batches()` keeps nothing."""

    def __init__(self, stream):
        self._stream = stream
        self._answer = None
        self._is_streamed = False
        self._error = None
        self._lock = _threading.Lock()

    def _collected(self):
        with self._lock:
            if self._answer is None:
                self._check()
                try:
                    self._answer = self._stream.collect()
                except Exception as error:
                    self._error = error
                    raise
            return self._answer

    def _check(self):
        """Raises what the statement has failed by, and an error for rows that were taken as batches."""
        if self._error is not None:
            raise self._error
        if self._is_streamed:
            raise UsageError(
                "the rows of this result were taken by batches(), which keeps none: run the statement again, or read it as a whole"
            )

    def batches(self):
        """Batches as they come, each with `__arrow_c_array__`, for one reader; the rows are not kept."""
        with self._lock:
            if self._answer is not None:
                return iter(self._answer.batches())
            self._check()
            self._is_streamed = True
        return self._streamed()

    def _streamed(self):
        while True:
            try:
                batch = self._stream.next_batch()
            except Exception as error:
                self._error = error
                raise
            if batch is None:
                return
            yield batch

    def __iter__(self):
        return self.batches()

    def __arrow_c_stream__(self, requested_schema=None):
        return self._collected().table(False).__arrow_c_stream__(requested_schema)

    def arrow(self):
        """A pyarrow.Table."""
        pyarrow = _imported("pyarrow", "arrow()")
        return pyarrow.table(self)

    def to_polars(self):
        """A polars.DataFrame."""
        polars = _imported("polars", "to_polars()")
        return polars.DataFrame(self)

    def to_pandas(self):
        """A pandas.DataFrame."""
        pandas = _imported("pandas", "to_pandas()")
        plain = self._collected().table(True)
        try:
            import pyarrow
        except ImportError:
            if hasattr(pandas.DataFrame, "from_arrow"):
                return pandas.DataFrame.from_arrow(plain)
            raise ImportError("to_pandas() needs pyarrow beside pandas: pip install pyarrow") from None
        return pyarrow.table(plain).to_pandas()

    def fetchall(self):
        """A list of tuples of Python's own values."""
        return self._collected().values()

    @property
    def columns(self):
        """Names of the columns."""
        return [name for name, _ in self._collected().columns]

    @property
    def types(self):
        """SQL's names of their types."""
        return [of for _, of in self._collected().columns]

    def __len__(self):
        return self._collected().rows

    @property
    def report(self):
        """Where the statement ran, why not on the device, and what it cost."""
        line, fields = self._collected().report
        return Report(line, _json.loads(fields))

    def __repr__(self):
        return self._collected().text()

    def _repr_html_(self):
        return self._collected().html()


class Report:
    """What a statement did. Its text is one line; its fields are those of Rust's QueryReport, as attributes."""

    def __init__(self, line, fields):
        self._line = line
        self._fields = fields

    @property
    def on_device(self):
        """True if every operator ran on the device."""
        return self._fields["device"] is not None and self._fields["operators_on_device"] == self._fields["operators"]

    def as_dict(self):
        """All fields."""
        return dict(self._fields)

    def __getattr__(self, name):
        fields = self.__dict__.get("_fields")
        if fields is None:
            raise AttributeError(name)
        try:
            return fields[name]
        except KeyError:
            raise AttributeError(f"a report has no {name}; it has {', '.join(sorted(self._fields))}") from None

    def __dir__(self):
        return [*super().__dir__(), *self._fields]

    def __str__(self):
        return self._line

    def __repr__(self):
        return f"<millpond.Report: {self._line}>"


_default = None
_default_lock = _threading.Lock()


def sql(text, params=None):
    """Runs statements on a connection of the module's own, which the first call opens."""
    global _default
    with _default_lock:
        if _default is None:
            _default = connect()
    return _default.sql(text, params)


def _program():
    """The program `millpond`, as the wheel installs it."""
    _native.program(_sys.argv)


class _PandasStream:
    """A frame of a pandas without Arrow's protocol."""

    def __init__(self, frame):
        self._frame = frame
        _imported("pyarrow", "register() of a pandas.DataFrame")

    def __arrow_c_stream__(self, requested_schema=None):
        import pyarrow

        return pyarrow.Table.from_pandas(self._frame).__arrow_c_stream__(requested_schema)


def _readable(frame):
    """The frame, or a copy of it that Arrow's C interface carries.

    Polars gives addresses for its type Object, and a Null column with a buffer that the interface does not have. Slices of pyarrow's
    structures within structures are copied: the Rust crate of Arrow cannot read them.
    """
    polars, pyarrow = _sys.modules.get("polars"), _sys.modules.get("pyarrow")
    if polars is not None and isinstance(frame, polars.DataFrame):
        for name, of in frame.schema.items():
            if of in (polars.Object, polars.Null):
                raise UsageError(f"column {name!r} is of Polars' type {of}, which is no type of SQL: cast it, or drop it")
    if pyarrow is not None and isinstance(frame, (pyarrow.Table, pyarrow.RecordBatch)):
        if any(_has_nested(field.type, pyarrow.types) for field in frame.schema):
            sink = pyarrow.BufferOutputStream()
            with pyarrow.ipc.new_stream(sink, frame.schema) as writer:
                writer.write(frame)
            return pyarrow.ipc.open_stream(sink.getvalue()).read_all()
    return frame


def _has_nested(of, types):
    """True for a structure within a structure or a list of a fixed size, at any depth."""
    children = [of.field(place).type for place in range(of.num_fields)]
    is_cut = types.is_struct(of) or types.is_fixed_size_list(of)
    return any(is_cut and types.is_struct(child) or _has_nested(child, types) for child in children)


def _is_pandas(frame):
    pandas = _sys.modules.get("pandas")
    return pandas is not None and isinstance(frame, pandas.DataFrame)


def _imported(module, what):
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(f"{what} needs {module}: pip install {module}") from None


def _setting(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


_EPOCH = _datetime.datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=_datetime.timezone.utc)
_MICROSECOND = _datetime.timedelta(microseconds=1)


def _parameter(value):
    """A value as its kind and what the native half makes it of."""
    if value is None or type(value).__name__ in ("NaTType", "NAType"):
        return ("null", None)
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return ("int", value)
        if 0 <= value < 2**64:
            return ("unsigned", value)
        raise UsageError(f"parameter {value} has more than 64 bits: give it as decimal.Decimal")
    if isinstance(value, float):
        return ("float", value)
    if isinstance(value, str):
        return ("str", value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ("bytes", bytes(value))
    if isinstance(value, _datetime.datetime):
        if getattr(value, "nanosecond", 0):
            # A pandas.Timestamp.
            return ("timestamp_ns" if value.tzinfo is None else "instant_ns", value.value)
        if value.tzinfo is None:
            return ("timestamp", (value - _EPOCH) // _MICROSECOND)
        return ("instant", (value - _EPOCH_UTC) // _MICROSECOND)
    if isinstance(value, _datetime.date):
        return ("date", value.toordinal() - _EPOCH.toordinal())
    if isinstance(value, _datetime.time):
        if value.tzinfo is not None:
            raise UsageError(f"parameter {value!r} has a time zone, which SQL's TIME does not: give a datetime, or the time without it")
        return ("time", ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond)
    if isinstance(value, _datetime.timedelta):
        nanoseconds = (value // _MICROSECOND) * 1000 + getattr(value, "nanoseconds", 0)
        if not -(2**63) <= nanoseconds < 2**63:
            raise UsageError(f"parameter {value} is longer than 292 years, the longest interval of nanoseconds")
        return ("duration", nanoseconds)
    if isinstance(value, _decimal.Decimal):
        return ("decimal", _decimal_parts(value))
    if isinstance(value, (list, tuple)):
        return ("list", [_parameter(item) for item in value])
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        # A scalar of NumPy's. Of nanoseconds it makes a number.
        if getattr(value.dtype, "kind", "") in "Mm":
            value = value.astype(f"{'datetime64' if value.dtype.kind == 'M' else 'timedelta64'}[us]")
        return _parameter(value.item())
    raise UsageError(f"a {type(value).__module__}.{type(value).__qualname__} cannot be a parameter")


def _decimal_parts(value):
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise UsageError(f"parameter {value} is no decimal that SQL has")
    unscaled = int("".join(map(str, digits)) or "0") * 10 ** max(exponent, 0)
    scale = max(-exponent, 0)
    precision = max(len(str(unscaled)), scale, 1)
    if precision > 38:
        raise UsageError(f"parameter {value} has {precision} digits, and a decimal has at most 38")
    return (-unscaled if sign else unscaled, precision, scale)
