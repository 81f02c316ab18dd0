"""The module with no other package: statements, parameters, errors, threads, signals, forks, the program."""

import copy
import datetime
import decimal
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import millpond

SALES = pathlib.Path("data/samples/sales.parquet").resolve()


def connect(**options):
    settings = {"millpond.cache_settle_seconds": 0, **options}
    return millpond.connect("sim", settings=settings)


def left(con):
    """Bytes of device memory in use, once queries that were dropped have ended."""
    deadline = time.monotonic() + 60
    while con._session.device_bytes_in_use > 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    return con._session.device_bytes_in_use


class Statements(unittest.TestCase):
    def setUp(self):
        self.con = connect()
        self.addCleanup(self.con.close)

    def test_values_come_back_as_pythons_own(self):
        sql = """SELECT 1::BIGINT AS i, 2.5::DOUBLE AS f, 'é' AS s, true AS b, NULL AS n, DATE '2024-02-29' AS d,
                 TIMESTAMP '2024-02-29 12:34:56' AS t, 1.25::DECIMAL(5, 2) AS m"""
        row = self.con.sql(sql).fetchall()
        moment = datetime.datetime(2024, 2, 29, 12, 34, 56)
        self.assertEqual(row, [(1, 2.5, "é", True, None, datetime.date(2024, 2, 29), moment, decimal.Decimal("1.25"))])

    def test_a_text_may_have_several_statements(self):
        result = self.con.sql("CREATE TABLE t AS VALUES (1, 'a'), (2, 'b'); SELECT * FROM t ORDER BY column1 DESC")
        self.assertEqual(result.fetchall(), [(2, "b"), (1, "a")])
        self.assertEqual((result.columns, result.types), (["column1", "column2"], ["bigint", "varchar"]))
        self.assertEqual((len(result), len(self.con.sql("CREATE TABLE u AS SELECT 1 AS x"))), (2, 0))

    def test_changes_are_made_at_once_and_queries_when_they_are_read(self):
        self.con.sql("CREATE TABLE t AS VALUES (1), (2)")
        self.con.sql("INSERT INTO t VALUES (3)")
        self.con.sql("DELETE FROM t WHERE column1 = 1")
        self.assertEqual(self.con.sql("SELECT * FROM t ORDER BY 1").fetchall(), [(2,), (3,)])
        self.assertEqual(self.con.sql("UPDATE t SET column1 = column1 * 10").fetchall(), [(2,)])
        with tempfile.TemporaryDirectory() as folder:
            self.con.sql(f"COPY t TO '{folder}/t.parquet'")
            self.assertEqual(self.con.sql(f"SELECT sum(column1) FROM '{folder}/t.parquet'").fetchall(), [(50,)])

    def test_columns_stay_between_calls(self):
        sql = f"SELECT category, sum(quantity) FROM '{SALES}' GROUP BY category ORDER BY category"
        first = self.con.sql(sql)
        rows = first.fetchall()
        second = self.con.sql(sql)
        self.assertEqual(second.fetchall(), rows)
        self.assertGreater(first.report.uploaded_bytes, 0)
        self.assertEqual(second.report.uploaded_bytes, 0)
        self.assertTrue(second.report.on_device, str(second.report))

    def test_parameters_of_every_kind(self):
        cases = [
            (True, "boolean"), (7, "bigint"), (2**63, "bigint unsigned"), (0.5, "double"), ("x'y", "varchar"), (b"\0a", "bytea"),
            (datetime.date(1969, 12, 31), "date"), (datetime.time(1, 2, 3, 4), "time"),
            (datetime.datetime(1969, 12, 31, 23, 59, 59, 999999), "timestamp(6)"),
            (decimal.Decimal("-0.001"), "decimal(3, 3)"), (decimal.Decimal("1E+3"), "decimal(4, 0)"), ([1, None, 3], "bigint[]"),
        ]
        for value, of in cases:
            result = self.con.sql("SELECT $1 AS v", [value])
            self.assertEqual((result.fetchall()[0][0], result.types), (value, [of]), value)
        zone = datetime.timezone(datetime.timedelta(hours=2))
        moment = datetime.datetime(2024, 1, 1, 2, tzinfo=zone)
        self.assertEqual(self.con.sql("SELECT $1 = TIMESTAMP '2024-01-01T00:00:00Z'", [moment]).fetchall(), [(True,)])
        self.assertEqual(self.con.sql("SELECT $1 IS NULL", [None]).fetchall(), [(True,)])
        self.assertEqual(self.con.sql("SELECT $a + $b", {"a": 1, "$b": 2}).fetchall(), [(3,)])
        day = datetime.timedelta(days=1)
        self.assertEqual(self.con.sql("SELECT (DATE '2024-02-28' + CAST($1 AS INTERVAL)) = DATE '2024-02-29'", [day]).fetchall(), [(True,)])

    def test_parameters_that_are_refused(self):
        for params, words in [
            ([], "parameter $1 has no value"), ([1, 2], "a value is given for parameter $2, and the statement reads only $1"), ([2**64], "more than 64 bits"),
            ([object()], "builtins.object cannot be a parameter"), ([decimal.Decimal("NaN")], "no decimal that SQL has"),
            ([decimal.Decimal("1E+40")], "41 digits"), ([[1, "a", b"c"]], "list of several types"),
            ([datetime.time(1, tzinfo=datetime.timezone.utc)], "has a time zone"), ([datetime.timedelta(days=10**6)], "longer than 292 years"),
        ]:
            with self.assertRaises(millpond.Error, msg=params) as raised:
                self.con.sql("SELECT $1", params).fetchall()
            self.assertIn(words, str(raised.exception))

    def test_batches_come_as_they_are_made(self):
        result = self.con.sql("SELECT value FROM generate_series(1, 100000) WHERE value % 2 = 0")
        rows = sum(batch.num_rows for batch in result)
        self.assertEqual(rows, 50000)
        # Rows that were taken are not lost without a word.
        for again in (result.fetchall, result.batches, lambda: len(result), lambda: result.report):
            with self.assertRaisesRegex(millpond.UsageError, "taken by batches"):
                again()
        with self.assertRaises(millpond.UsageError) as raised:
            connect().sql("SELECT 1 AS x; SELECT $1", [1])
        self.assertIn("parameters are for one statement", str(raised.exception))

    def test_a_stream_that_is_dropped_leaves_nothing(self):
        result = self.con.sql("SELECT value, value * 2 FROM generate_series(1, 300000)")
        next(iter(result))
        del result
        self.assertEqual(left(self.con), 0)

    def test_an_error_is_the_same_the_second_time(self):
        result = self.con.sql("SELECT 10 / (value - 3) AS v FROM generate_series(1, 5)")
        for read in (result.fetchall, result.__repr__):
            with self.assertRaisesRegex(millpond.Error, "(?i)divide by zero"):
                read()
        with self.assertRaisesRegex(millpond.UsageError, "column i of type interval has no value in Python"):
            self.con.sql("SELECT INTERVAL '1 day' AS i").fetchall()
        with self.assertRaisesRegex(millpond.UsageError, "a list, a tuple or a dict, not a str"):
            self.con.sql("SELECT $1", "abc")

    def test_explain_is_shown_as_its_text(self):
        for explain, last in [("EXPLAIN", "limited by: reading sales.parquet"), ("EXPLAIN ANALYZE", "limited by: ")]:
            result = self.con.sql(f"{explain} SELECT product, count(*) FROM '{SALES}' GROUP BY product")
            lines = repr(result).splitlines()
            self.assertEqual(lines[-1][: len(last)], last)
            self.assertTrue(any("DeviceScanExec: sales.parquet" in line for line in lines), lines)
            self.assertTrue(all(len(line) <= 120 for line in lines), lines)
            self.assertTrue(result._repr_html_().startswith("<pre>"))

    def test_results_are_shown(self):
        result = self.con.sql("SELECT value AS v, '<&>' AS s FROM generate_series(1, 1000)")
        shown, html = repr(result), result._repr_html_()
        self.assertIn("bigint", shown)
        self.assertIn("varchar", shown)
        self.assertIn("… 960 more rows", shown)
        self.assertEqual(shown.count("<&>"), 40)
        self.assertIn("1000 rows · ", shown.splitlines()[-1])
        self.assertEqual(html.count("&lt;&amp;&gt;"), 40)
        self.assertNotIn("<&>", html)
        self.assertIn("… 960 more rows", html)

    def test_reports(self):
        report = self.con.sql(f"SELECT sum(quantity) FROM '{SALES}'").report
        self.assertTrue(report.on_device)
        self.assertEqual((report.answer_rows, report.as_dict()["answer_rows"]), (1, 1))
        self.assertIn("simulated device", str(report))
        self.assertEqual(str(copy.deepcopy(report)), str(report))
        with self.assertRaisesRegex(AttributeError, "a report has no launchez; it has .*launches"):
            report.launchez
        cpu = millpond.connect("cpu").sql("SELECT 1 AS x").report
        self.assertFalse(cpu.on_device)
        self.assertTrue(str(cpu).endswith("· CPU"), str(cpu))


class Errors(unittest.TestCase):
    def test_a_caret_shows_the_place(self):
        with self.assertRaises(millpond.Error) as raised:
            connect().sql(f"SELECT quantit\nFROM '{SALES}'")
        self.assertIn("line 1: SELECT quantit\n", str(raised.exception))
        self.assertIn("^^^^^^^", str(raised.exception))
        self.assertIn("quantity", str(raised.exception))

    def test_kinds(self):
        con = connect()
        for kind, words, act in [
            (millpond.UsageError, "millpond.batch_rows", lambda: connect(**{"millpond.batch_rowz": 1})),
            (millpond.UsageError, "--device cannot be 'gpu'", lambda: millpond.connect("gpu")),
            (millpond.DeviceError, "device cuda:7 is not available", lambda: millpond.connect("cuda:7")),
            (millpond.FileError, "does not exist", lambda: con.sql("SELECT * FROM 'nowhere.parquet'")),
            (millpond.UsageError, "no frame", lambda: con.register("t", 3)),
            (millpond.UsageError, "no statement", lambda: con.sql(" -- nothing\n ")),
            (millpond.Error, "overflow", lambda: con.sql("SELECT sum(x) FROM (VALUES (9223372036854775807), (1)) AS t(x)").fetchall()),
        ]:
            with self.assertRaises(kind, msg=words) as raised:
                act()
            self.assertIn(words, str(raised.exception))
        self.assertFalse(con.unregister("nothing"))

    def test_a_closed_connection(self):
        con = connect()
        self.assertEqual(repr(con), "<millpond.Connection on simulated device>")
        with con as opened:
            self.assertIs(opened, con)
        self.assertEqual(repr(con), "<millpond.Connection, closed>")
        with self.assertRaisesRegex(millpond.UsageError, "the connection is closed"):
            con.sql("SELECT 1")
        con.close()

    def test_a_frame_that_raises(self):
        class Frame:
            def __arrow_c_stream__(self, requested_schema=None):
                raise KeyError("no rows today")

        with self.assertRaisesRegex(KeyError, "no rows today"):
            connect().register("t", Frame())

        class Bad:
            def __arrow_c_stream__(self, requested_schema=None):
                raise ValueError("a bad day")

        with self.assertRaisesRegex(ValueError, "^a bad day$"):
            connect().register("t", Bad())

    def test_a_device_that_is_lost_and_a_full_one(self):
        con = connect(**{"millpond.debug_sim_lose_at_launch": 1, "millpond.fallback": "error"})
        con.sql("SET millpond.fallback = 'allow'; CREATE TABLE t AS SELECT value AS x FROM generate_series(1, 10)")
        result = con.sql("SELECT sum(x) FROM t")
        self.assertEqual(result.fetchall(), [(55,)])
        self.assertFalse(result.report.on_device)
        full = connect(**{"millpond.memory_limit_bytes": 2000, "millpond.fallback": "error"})
        with self.assertRaisesRegex(millpond.DeviceError, "out of device memory.*millpond.memory_limit_bytes"):
            full.sql("SELECT v % 1000 AS k, sum(v) FROM generate_series(1, 4000) AS t(v) GROUP BY v % 1000").fetchall()


class Processes(unittest.TestCase):
    def test_eight_threads_ask_at_once(self):
        con = connect()
        con.sql("CREATE TABLE t AS SELECT value AS x, value % 7 AS k FROM generate_series(1, 5000)")
        expected = [(k, sum(x for x in range(1, 5001) if x % 7 == k)) for k in range(7)]
        wrong = []

        def ask(mine):
            for _ in range(5):
                rows = mine.sql("SELECT k, sum(x) FROM t GROUP BY k ORDER BY k").fetchall()
                if rows != expected:
                    wrong.append(rows)

        def apart(number):
            mine = con.another()
            mine.sql(f"CREATE TABLE t AS SELECT value + 0 * {number} AS x, value % 7 AS k FROM generate_series(1, 5000)")
            ask(mine)
            mine.close()

        threads = [threading.Thread(target=ask, args=(con,)) for _ in range(8)]
        threads += [threading.Thread(target=apart, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(left(con), 0)

    def test_the_interpreter_runs_while_a_query_does(self):
        con, ticks, done = connect(), [], threading.Event()

        def count():
            while not done.is_set():
                ticks.append(time.monotonic())
                time.sleep(0.002)

        thread = threading.Thread(target=count)
        thread.start()
        try:
            con.sql("SELECT count(*) FROM generate_series(1, 2000000) AS t(v) WHERE v % 3 = 0").fetchall()
        finally:
            done.set()
            thread.join()
        self.assertGreater(len(ticks), 3)

    def test_ctrl_c_ends_a_query(self):
        # A join of a million times a million rows would take hours.
        code = """
import millpond, sys
con = millpond.connect("sim")
print("begun", flush=True)
try:
    con.sql("SELECT count(*) FROM generate_series(1, 1000000) a(x), generate_series(1, 1000000) b(y) WHERE x * y % 7 = 3").fetchall()
except KeyboardInterrupt:
    print("interrupted", con.sql("SELECT 1 + 1").fetchall(), flush=True)
"""
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        self.assertEqual(process.stdout.readline(), "begun\n")
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        self.assertEqual((said, process.returncode), ("interrupted [(2,)]\n", 0))

    def test_a_fork_says_so_and_ends(self):
        code = """
import millpond, os, sys
con = millpond.connect("sim")
result = con.sql("SELECT 1 AS x")
child = os.fork()
if child == 0:
    try:
        con.sql("SELECT 1").fetchall()
    except millpond.Error as error:
        print("child:", error, flush=True)
    try:
        millpond.connect("sim")
    except millpond.Error as error:
        print("again:", "fork" in str(error), flush=True)
    sys.exit(0)
_, status = os.waitpid(child, 0)
print("parent:", status, con.sql("SELECT 2").fetchall(), result.fetchall(), flush=True)
"""
        said = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
        lines = said.stdout.splitlines()
        self.assertEqual(len(lines), 3, said)
        self.assertRegex(lines[0], "child: millpond was opened by process [0-9]+, of which this one is a fork")
        self.assertEqual(lines[1:], ["again: True", "parent: 0 [(2,)] [(1,)]"])

    def test_daemon_threads_end_with_python(self):
        code = f"""
import millpond, threading, time
con = millpond.connect("sim")
def ask():
    while True:
        con.sql("SELECT category, count(*) FROM '{SALES}' GROUP BY category").fetchall()
for _ in range(4):
    threading.Thread(target=ask, daemon=True).start()
time.sleep(1)
print("end")
"""
        for _ in range(3):
            said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
            self.assertEqual((said.stdout, said.returncode), ("end\n", 0), said)

    def test_a_second_interpreter_is_refused(self):
        code = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
second = interpreters.create()
said = "try:\\n    import millpond\\nexcept ImportError as error:\\n    print(error, flush=True)"
interpreters.run_string(second, said)
import millpond
print(millpond.sql("SELECT 1").fetchall())
"""
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        if "No module named '_xxsubinterpreters'" in said.stderr:
            self.skipTest("this Python has no second interpreter")
        self.assertEqual(said.returncode, 0, said)
        refused, answer = said.stdout.splitlines()
        self.assertRegex(refused, "main interpreter")
        self.assertEqual(answer, "[(1,)]")

    def test_the_program_is_the_same(self):
        code = "import millpond; millpond._program()"
        program = [sys.executable, "-c", code]
        said = subprocess.run([*program, "--version"], capture_output=True, text=True, timeout=60)
        self.assertTrue(said.stdout.startswith(f"millpond {millpond.__version__}"), said)
        said = subprocess.run([*program, "--device", "sim", "-c", "SELECT 1 + 1 AS two"], capture_output=True, text=True, timeout=60)
        self.assertEqual((said.stdout, said.returncode), ("two\n2\n", 0), said)
        said = subprocess.run([*program, "-c", "SELEC"], capture_output=True, text=True, timeout=60)
        self.assertEqual(said.returncode, 1, said)
        self.assertIn("error: ", said.stderr)


if __name__ == "__main__":
    unittest.main()
