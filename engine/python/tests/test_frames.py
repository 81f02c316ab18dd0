"""Frames of Polars, pandas, pyarrow and DuckDB, in and out."""

import datetime
import decimal
import unittest

import duckdb
import numpy
import pandas
import polars
import pyarrow

import millpond


def connect(**options):
    return millpond.connect("sim", settings={"millpond.cache_settle_seconds": 0, **options})


class Frames(unittest.TestCase):
    def test_a_polars_frame_goes_round_twice_and_is_uploaded_once(self):
        frame = polars.DataFrame({"k": ["a", "b", None] * 30_000, "v": range(90_000)})
        con = connect().register("t", frame)
        sql = "SELECT k, sum(v) AS s FROM t GROUP BY k ORDER BY k NULLS LAST"
        expected = frame.group_by("k").agg(polars.col("v").sum().alias("s")).sort("k", nulls_last=True)
        first = con.sql(sql)
        self.assertTrue(first.to_polars().equals(expected), first)
        second = con.sql(sql)
        self.assertTrue(second.to_polars().equals(expected), second)
        self.assertTrue(second.report.on_device, str(second.report))
        self.assertGreater(first.report.uploaded_bytes, 0)
        self.assertEqual(second.report.uploaded_bytes, 0)
        # In again, and out again.
        con.register("u", first.to_polars())
        self.assertTrue(con.sql("SELECT * FROM u").to_polars().equals(expected))

    def test_a_write_into_a_pandas_frame_is_seen(self):
        frame = pandas.DataFrame({"k": numpy.arange(1000) % 10, "v": numpy.arange(1000)})
        con = connect().register("t", frame)
        sql = "SELECT sum(v) FROM t WHERE k = 3"
        before = con.sql(sql).fetchall()
        frame.loc[3, "v"] = 10_000
        after = con.sql(sql)
        self.assertEqual(after.fetchall()[0][0], before[0][0] + 10_000 - 3)
        self.assertTrue(after.report.on_device, str(after.report))
        # By the array beneath, too.
        values = frame["v"].to_numpy()
        if values.flags.writeable:
            values[13] = -1
        frame.loc[13, "v"] = -1
        self.assertEqual(con.sql(sql).fetchall()[0][0], before[0][0] + 10_000 - 3 - 13 - 1)
        frame["v"] = frame["v"].astype("float32")
        with self.assertRaisesRegex(millpond.Error, "register it again"):
            con.sql(sql).fetchall()
        con.register("t", frame)
        self.assertEqual(con.sql("SELECT count(v) FROM t").fetchall(), [(1000,)])

    def test_every_library_gives_and_takes_the_same(self):
        moment = datetime.datetime(2024, 2, 29, 12, 0, 1)
        table = pyarrow.table({
            "i": pyarrow.array([1, None, 3], pyarrow.int32()),
            "f": [0.5, -0.0, None],
            "s": ["é", "", None],
            "b": [True, None, False],
            "d": pyarrow.array([datetime.date(1969, 12, 31), None, datetime.date(2024, 2, 29)]),
            "t": pyarrow.array([moment, None, moment], pyarrow.timestamp("us")),
            "m": pyarrow.array([decimal.Decimal("1.25"), None, decimal.Decimal("-7.00")], pyarrow.decimal128(9, 2)),
            "l": pyarrow.array([[1, 2], [], None], pyarrow.list_(pyarrow.int64())),
        })
        rows = list(zip(*(column.to_pylist() for column in table.columns)))
        duck = duckdb.connect()
        duck.register("rows", table)
        frames = {
            "pyarrow": table, "batch": table.to_batches()[0], "polars": polars.from_arrow(table), "duckdb": duck.sql("FROM rows"),
            "pandas": table.to_pandas(types_mapper=pandas.ArrowDtype),
        }
        con = connect()
        for name, frame in frames.items():
            con.register("t", frame)
            result = con.sql("SELECT * FROM t")
            self.assertEqual(result.fetchall(), rows, name)
            for back in (result.arrow(), pyarrow.table(result), result.to_polars().to_arrow(), duck.sql("FROM result").to_arrow_table()):
                self.assertEqual(list(zip(*(column.to_pylist() for column in back.columns))), rows, name)
            self.assertEqual(result.to_pandas()["i"].notna().tolist(), [True, False, True], name)

    def test_rows_keep_their_order_and_frames_may_be_empty(self):
        chunks = polars.concat([polars.DataFrame({"v": range(n * 100, n * 100 + 100)}) for n in range(20)], rechunk=False)
        con = connect().register("t", chunks)
        self.assertEqual(con.sql("SELECT v FROM t").to_polars()["v"].to_list(), list(range(2000)))
        con.register("t", chunks.clear())
        self.assertEqual(con.sql("SELECT count(*), sum(v) FROM t").fetchall(), [(0, None)])
        self.assertEqual(con.sql("SELECT v FROM t").to_polars().shape, (0, 1))
        self.assertTrue(con.unregister("t"))
        with self.assertRaisesRegex(millpond.Error, "t"):
            con.sql("SELECT * FROM t")

    def test_frames_that_arrow_does_not_carry(self):
        nested = pyarrow.table({"a": [{"b": {"c": n, "d": str(n)}} for n in range(10)]})
        con = connect().register("t", nested.slice(3, 4))
        self.assertEqual(con.sql("SELECT * FROM t").arrow().to_pylist(), nested.slice(3, 4).to_pylist())
        cases = [
            (polars.DataFrame({"a": [None, None]}), "column 'a' is of Polars' type Null"),
            (polars.DataFrame({"a": [object()]}, schema={"a": polars.Object}), "column 'a' is of Polars' type Object"),
            (polars.Series("a", [1, 2]), "a frame of columns"),
            (pyarrow.array([1, 2]), "a frame of columns"),
            ({"a": [1]}, "a builtins.dict is no frame"),
        ]
        for frame, words in cases:
            with self.assertRaisesRegex(millpond.UsageError, words):
                con.register("u", frame)

    def test_parameters_of_pandas(self):
        con = connect()
        moment = pandas.Timestamp("2024-02-29 12:00:01.123456789")
        self.assertEqual(con.sql("SELECT $1 = TIMESTAMP '2024-02-29T12:00:01.123456789'", [moment]).fetchall(), [(True,)])
        zoned = moment.tz_localize("Europe/Rome")
        self.assertEqual(con.sql("SELECT $1 = TIMESTAMP '2024-02-29T11:00:01.123456789Z'", [zoned]).fetchall(), [(True,)])
        span = [pandas.Timedelta(1_001, "ns")]
        self.assertEqual(con.sql("SELECT CAST($1 AS INTERVAL) = INTERVAL '1001 nanoseconds'", span).fetchall(), [(True,)])
        for nothing in (pandas.NaT, pandas.NA, numpy.datetime64("NaT")):
            self.assertEqual(con.sql("SELECT $1 IS NULL", [nothing]).fetchall(), [(True,)], repr(nothing))

    def test_frames_join_files_and_each_other(self):
        rates = polars.DataFrame({"of": ["kitchen", "garden", "living"], "rate": [0.19, 0.07, 0.19]})
        con = connect().register("rates", rates)
        sql = """SELECT category, sum(price * rate) AS tax FROM 'data/samples/sales.parquet' JOIN rates ON category = of
                 WHERE quantity > 1 GROUP BY category ORDER BY category"""
        duck = duckdb.connect()
        duck.register("rates", rates)
        ours, theirs = con.sql(sql).fetchall(), duck.sql(sql).fetchall()
        self.assertEqual([name for name, _ in ours], [name for name, _ in theirs])
        for (name, tax), (_, expected) in zip(ours, theirs):
            self.assertAlmostEqual(tax, expected, delta=1e-9 * expected, msg=name)

    def test_batches_stream_into_pyarrow(self):
        result = connect().sql("SELECT value AS v FROM generate_series(1, 50000) WHERE value % 5 = 0")
        total = sum(pyarrow.record_batch(batch).column("v").to_numpy().sum() for batch in result.batches())
        self.assertEqual(total, sum(range(5, 50001, 5)))


if __name__ == "__main__":
    unittest.main()
