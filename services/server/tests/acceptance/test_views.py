"""Views compute the results of DuckDB, and excluded rows and columns are not read."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from client import Client, refused
from server import Pool

ROWS = 3000
IN_ORDER = {"shuffle": {"none": {}}, "batch_size": 100_000}

# A pair has the expression for Forebay and the one for DuckDB. `i` is small, `j` any int64, `f` any double, `s` text, `d` a
# date, `t` a time, `z` a time with a zone, `l` a list, `p` a struct, `m` a map.
EXPRESSIONS: list[str | tuple[str, str]] = [
    "i + j % 1000",
    "i * i - 3",
    ("i / 7", "i // 7"),
    "i % 7",
    ("CAST(i AS DOUBLE) / 7", "i / 7"),
    "-i",
    "f * 2 + 1",
    "f > 0",
    "i >= 5 AND NOT (j < 0)",
    "i < 3 OR j > 100",
    "i IS NULL",
    "f IS NOT NULL",
    "i BETWEEN -5 AND 5",
    "i IN (1, 2, 3)",
    "i NOT IN (1, 2, 3)",
    "NOT (i > 3)",
    "i IS DISTINCT FROM j",
    "j = i",
    "GREATEST(i, j)",
    "LEAST(i, j)",
    "j % 1000 + i % 5 * 2",
    "p['city']",
    "p.city",
    ("get_field(p, 'city')", "p.city"),
    ("m['a']", "m['a']"),
    "p['at']['zip'] + 1",
    "CASE WHEN i > 10 THEN 'big' WHEN i > 0 THEN 'small' ELSE s END",
    "COALESCE(i, 7)",
    "NULLIF(i, 3)",
    "GREATEST(i, 4)",
    "LEAST(i, 4)",
    "CAST(i AS BIGINT)",
    "CAST(small AS FLOAT)",
    "CAST(i AS VARCHAR)",
    "TRY_CAST(s AS INT)",
    "abs(i)",
    "ceil(small)",
    "floor(small)",
    "round(small)",
    "sqrt(abs(small))",
    "exp(small)",
    "ln(abs(small) + 1)",
    "log10(abs(small) + 1)",
    "log2(abs(small) + 1)",
    "sin(small)",
    "cos(small)",
    "atan2(small, 2.0)",
    "power(small, 2)",
    "cbrt(small)",
    "degrees(small)",
    "isnan(f)",
    "tan(small)",
    "asin(small / 20)",
    "acos(small / 20)",
    "atan(small)",
    "sinh(small)",
    "cosh(small)",
    "tanh(small)",
    "asinh(small)",
    "acosh(abs(small) + 1)",
    "atanh(small / 21)",
    "cot(abs(small) + 1)",
    "radians(small)",
    "pi() * i",
    ("signum(small)", "sign(small)"),
    "trunc(small)",
    "gcd(i, 12)",
    "lcm(i, 12)",
    ("nvl(i, 5)", "ifnull(i, 5)"),
    ("nvl2(i, 5, 6)", "CASE WHEN i IS NULL THEN 6 ELSE 5 END"),
    ("nanvl(f, 0.5e0)", "CASE WHEN isnan(f) THEN 0.5 ELSE f END"),
    ("iszero(f)", "f = 0"),
    ("log(2, abs(small) + 1)", "log(2, abs(small) + 1)"),
    "upper(s)",
    "lower(s)",
    ("initcap(s)", "array_to_string(list_transform(string_split(s, ' '), lambda w: upper(w[1]) || lower(w[2:])), ' ')"),
    ("character_length(s)", "length(s)"),
    ("octet_length(s)", "strlen(s)"),
    "s || '-' || s",
    "concat(s, 'x')",
    "substr(s, 2, 3)",
    "left(s, 2)",
    "right(s, 2)",
    "reverse(s)",
    "trim(s)",
    ("btrim(s, 'ab')", "trim(s, 'ab')"),
    "ltrim(s, 'a')",
    "rtrim(s, 'a')",
    "ends_with(s, 'B')",
    "concat_ws('-', s, 'x', s)",
    "translate(s, 'aé', 'xy')",
    ("ascii(s)", "ascii(s)"),
    "bit_length(s)",
    "chr(abs(i) + 65)",
    ("to_hex(j)", "lower(to_hex(j))"),
    ("find_in_set('b', 'a,b,c')", "2"),
    "starts_with(s, 'a')",
    "contains(s, 'b')",
    "strpos(s, 'b')",
    "split_part(s, 'b', 1)",
    "s LIKE '%b%'",
    "s ILIKE 'A%'",
    "s = 'abc'",
    "d > DATE '2020-06-01'",
    "date_part('year', d)",
    "date_part('month', t)",
    "date_part('hour', t)",
    "EXTRACT(day FROM d)",
    "date_trunc('hour', t)",
    "CAST(t AS DATE)",
    "date_part('dow', d)",
    "date_part('week', d)",
    "date_part('doy', d)",
    "date_part('quarter', t)",
    "date_part('minute', t)",
    "date_trunc('month', t)",
    "date_trunc('week', d)",
    ("date_bin(INTERVAL '15 minutes', t, TIMESTAMP '2000-01-01')", "time_bucket(INTERVAL '15 minutes', t, TIMESTAMP '2000-01-01')"),
    ("make_date(2000 + abs(i), 2, 3)", "make_date(2000 + abs(i), 2, 3)"),
    ("from_unixtime(CAST(i AS BIGINT))", "to_timestamp(i)::TIMESTAMP"),
    ("to_unixtime(t)", "epoch(t)::BIGINT"),
    ("to_timestamp_millis(j % 1000000000000)", "epoch_ms(j % 1000000000000)"),
    ("to_timestamp_seconds(CAST(i AS BIGINT))", "to_timestamp(i)::TIMESTAMP"),
    ("to_timestamp_micros(j % 1000000000000)", "make_timestamp(j % 1000000000000)"),
    ("to_timestamp_nanos(j % 1000000000 * 1000)", "make_timestamp(j % 1000000000)"),
    ("to_timestamp(CAST(i AS BIGINT))", "to_timestamp(i)::TIMESTAMP"),
    ("to_timestamp(CAST(t AS VARCHAR))", "t"),
    ("to_timestamp('2024-02-29T12:34:56.5')", "TIMESTAMP '2024-02-29 12:34:56.5'"),
    ("to_local_time(z)", "timezone('America/New_York', z)"),
    *(f"date_part('{part}', t)" for part in ("year", "day", "isodow", "isoyear")),
    ("date_part('second', t)", "date_part('second', t)"),
    ("date_part('epoch', t)", "epoch(t)"),
    *(f"date_trunc('{part}', t)" for part in ("year", "quarter", "week", "day", "minute", "second")),
    ("to_date(CAST(d AS VARCHAR))", "d"),
    ("to_date('2024-02-29')", "DATE '2024-02-29'"),
    "date_trunc('month', d)",
    "d + INTERVAL '12 hours'",
    "d - INTERVAL '1 day'",
    "d + INTERVAL '1 month 25 hours'",
    "t + INTERVAL '1 month'",
    *(f"EXTRACT({part} FROM t - TIMESTAMP '2020-01-01 00:30:00')" for part in ("day", "hour", "minute", "second", "millisecond")),
    *(f"t - TIMESTAMP '2020-01-01 00:30:00' {op} INTERVAL '40 days'" for op in ("<", "<=", "=", "<>", ">", ">=")),
    "t - TIMESTAMP '2020-01-01 00:30:00' BETWEEN INTERVAL '-1 month' AND INTERVAL '240 hours'",
    # Lists. DuckDB has slices and resizes for these.
    ("list_truncate(l, 3)", "l[1:3]"),
    ("list_pad(l, 4, -1)", "CASE WHEN len(l) < 4 THEN list_resize(l, 4, -1) ELSE l END"),
    ("list_pad(list_truncate(l, 2), 2, 0)", "list_resize(l, 2, 0)"),
    # Forebay's own functions, written as formulas for DuckDB.
    ("log1p(small)", "ln(1 + small::DOUBLE)"),
    ("clip(i, -3, 10)", "CASE WHEN i IS NOT NULL THEN least(greatest(i, -3), 10) END"),
    ("standardize(i, 5, 2)", "(i - 5.0) / 2.0::DOUBLE"),
    ("bucketize(i, -10, 0, 10)", "(i >= -10)::INT + (i >= 0)::INT + (i >= 10)::INT"),
]


def words(rng: random.Random) -> str:
    return "".join(rng.choice("abcABé 12日") for _ in range(rng.randrange(8)))


def table(seed: int) -> pa.Table:
    rng = random.Random(seed)

    def column(make: Any, kind: pa.DataType) -> pa.Array:
        return pa.array([None if rng.random() < 0.1 else make() for _ in range(ROWS)], kind)

    extremes = [0, 1, -1, 2**63 - 1, -(2**63), 2**31, -(2**31)]
    floats = [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, 1e300, 5e-324]
    return pa.table(
        {
            "i": column(lambda: rng.randrange(-40, 40), pa.int32()),
            "j": column(lambda: rng.choice(extremes + [rng.randrange(-(10**9), 10**9)]), pa.int64()),
            "f": column(lambda: rng.choice(floats), pa.float64()),
            "small": column(lambda: rng.uniform(-20, 20), pa.float64()),
            "s": column(lambda: words(rng), pa.string()),
            "d": column(lambda: rng.randrange(18_000, 19_000), pa.int32()).cast(pa.date32()),
            "t": column(lambda: rng.randrange(1_500_000_000, 1_700_000_000) * 10**6, pa.int64()).cast(pa.timestamp("us")),
            "z": column(lambda: rng.randrange(1_500_000_000, 1_700_000_000) * 10**6, pa.int64()).cast(
                pa.timestamp("us", "America/New_York")
            ),
            "p": column(
                lambda: {"city": words(rng), "at": {"zip": rng.randrange(99)}},
                # The fields hold values under a null struct, because they are not nullable themselves.
                pa.struct([pa.field("city", pa.string(), False), pa.field("at", pa.struct([pa.field("zip", pa.int64(), False)]), False)]),
            ),
            "m": column(lambda: [(key, rng.randrange(9)) for key in "abc" if rng.random() < 0.5], pa.map_(pa.string(), pa.int64())),
            "l": column(lambda: [rng.randrange(100) for _ in range(rng.randrange(7))], pa.list_(pa.int64())),
        }
    )


def same(ours: list, theirs: list) -> bool:
    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, float) and isinstance(b, float):
            return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-300)
        return a == b

    return len(ours) == len(theirs) and all(map(equal, ours, theirs))


def test_every_supported_function_is_compared() -> None:
    source = (Path(__file__).parents[3] / "sql/src/functions.rs").read_text()
    known = re.findall(r'"(\w+)"', source.split("const DATAFUSION")[1].split("];")[0])
    ours = ["log1p", "clip", "standardize", "bucketize", "list_truncate", "list_pad", "get_field"]
    spelled = " ".join(each if isinstance(each, str) else each[0] for each in EXPRESSIONS).lower()
    assert [name for name in known + ours if not re.search(rf"\b{name}\(", spelled)] == []


@pytest.mark.parametrize("seed", range(3))
def test_expressions_equal_those_of_duckdb(pool: Pool, tmp_path: Path, seed: int) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb has no wheel for this Python")
    rows = table(seed)
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=1000)
    server = pool.start({"rows": tmp_path / "rows.parquet"})
    pairs = [each if isinstance(each, tuple) else (each, each) for each in EXPRESSIONS]
    select = [f"{ours} AS e{index}" for index, (ours, _) in enumerate(pairs)]
    with Client(server.location) as client:
        (batch,) = (each.data for each in client.batches(dataset="rows", select=select, **IN_ORDER))
    theirs = duckdb.connect()
    theirs.register("rows", rows)
    wrong = {}
    for index, (ours, sql) in enumerate(pairs):
        expected = [row[0] for row in theirs.execute(f"SELECT {sql} FROM rows").fetchall()]
        found = batch.column(index).to_pylist()
        different = [(a, b) for a, b in zip(found, expected) if not same([a], [b])]
        if different:
            wrong[ours] = different[:3]
    assert not wrong, wrong


class Trees:
    """Random expressions with the same meaning in both: integers stay small, and no divisor is zero."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def one(self, kind: str, depth: int) -> str:
        leaves, branches = getattr(self, kind)(lambda of: self.one(of, depth - 1))
        return self.rng.choice(leaves if depth == 0 or self.rng.random() < 0.15 else branches)()

    def integer(self, of: Any) -> tuple[list, list]:
        leaves = [lambda: "CAST(i AS BIGINT)", lambda: str(self.rng.randrange(-9, 10)), lambda: "length_of"]
        return leaves, [
            lambda: f"({of('integer')} + {of('integer')})",
            lambda: f"({of('integer')} - {of('integer')})",
            lambda: f"(({of('integer')} * {of('integer')}) % 1009)",
            lambda: f"({of('integer')} % 7)",
            lambda: f"abs({of('integer')})",
            lambda: f"CASE WHEN {of('truth')} THEN {of('integer')} ELSE {of('integer')} END",
            lambda: f"COALESCE({of('integer')}, {of('integer')})",
            lambda: f"NULLIF({of('integer')}, {of('integer')})",
            lambda: f"GREATEST({of('integer')}, {of('integer')})",
        ]

    def real(self, of: Any) -> tuple[list, list]:
        return [lambda: "small", lambda: f"{self.rng.uniform(-3, 3):.3f}e0"], [
            lambda: f"({of('real')} + {of('real')})",
            lambda: f"({of('real')} * {of('real')})",
            lambda: f"(- {of('real')})",
            lambda: f"({of('real')} / 2.5e0)",
            lambda: f"CAST({of('integer')} AS DOUBLE)",
            lambda: f"floor({of('real')})",
            lambda: f"CASE WHEN {of('truth')} THEN {of('real')} END",
            lambda: f"COALESCE({of('real')}, 0.5e0)",
        ]

    def truth(self, of: Any) -> tuple[list, list]:
        leaves = [lambda: "(i > 3)", lambda: "(s IS NULL)", lambda: "(f >= 1.5e0)", lambda: "(s LIKE '%a%')"]
        return leaves, [
            lambda: f"({of('integer')} {self.rng.choice(['<', '<=', '=', '<>', '>='])} {of('integer')})",
            lambda: f"({of('real')} {self.rng.choice(['<', '>'])} {of('real')})",
            lambda: f"({of('text')} {self.rng.choice(['<', '=', '<>'])} {of('text')})",
            lambda: f"({of('truth')} AND {of('truth')})",
            lambda: f"({of('truth')} OR {of('truth')})",
            lambda: f"(NOT {of('truth')})",
            lambda: f"({of('integer')} IS NULL)",
            lambda: f"({of('integer')} IS DISTINCT FROM {of('integer')})",
            lambda: f"({of('integer')} BETWEEN {of('integer')} AND {of('integer')})",
            lambda: f"({of('integer')} NOT IN (1, -2, {self.rng.randrange(40)}))",
        ]

    def text(self, of: Any) -> tuple[list, list]:
        return [lambda: "s", lambda: f"'{self.rng.choice('abé')}'"], [
            lambda: f"({of('text')} || {of('text')})",
            lambda: f"upper({of('text')})",
            lambda: f"substr({of('text')}, 2, 3)",
            lambda: f"CASE WHEN {of('truth')} THEN {of('text')} ELSE {of('text')} END",
            lambda: f"COALESCE({of('text')}, 'none')",
            lambda: f"NULLIF({of('text')}, 'a')",
        ]


@pytest.mark.parametrize("seed", range(4))
def test_random_expressions_and_filters_equal_those_of_duckdb(pool: Pool, tmp_path: Path, seed: int) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb has no wheel for this Python")
    rows, trees = table(100 + seed), Trees(seed)
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=700)
    server = pool.start({"rows": tmp_path / "rows.parquet"})
    theirs = duckdb.connect()
    theirs.register("rows", rows)
    words = {"length_of": ("CAST(character_length(s) AS BIGINT)", "length(s)")}

    def spelled(tree: str, place: int) -> str:
        return tree.replace("length_of", words["length_of"][place])

    columns = [trees.one(kind, 4) for kind in ("integer", "real", "truth", "text") for _ in range(15)]
    conditions = [trees.one("truth", 4) for _ in range(15)]
    wrong = {}
    with Client(server.location) as client:
        select = [f"{spelled(tree, 0)} AS e{index}" for index, tree in enumerate(columns)]
        (batch,) = (each.data for each in client.batches(dataset="rows", select=select, **IN_ORDER))
        for index, tree in enumerate(columns):
            expected = [row[0] for row in theirs.execute(f"SELECT {spelled(tree, 1)} FROM rows").fetchall()]
            found = batch.column(index).to_pylist()
            if not same(found, expected):
                wrong[tree] = next((a, b) for a, b in zip(found, expected) if not same([a], [b]))
        for condition in conditions:
            kept = theirs.execute(f"SELECT j FROM rows WHERE {spelled(condition, 1)}").fetchall()
            found = client.batches(dataset="rows", select=["j"], filter=spelled(condition, 0), **IN_ORDER)
            if [each for batch in found for each in batch.data.column("j").to_pylist()] != [row[0] for row in kept]:
                wrong[f"WHERE {condition}"] = len(kept)
    assert not wrong, wrong


def test_filters_select_the_rows_that_duckdb_selects(pool: Pool, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb has no wheel for this Python")
    rows = table(7)
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=500)
    server = pool.start({"rows": tmp_path / "rows.parquet"})
    theirs = duckdb.connect()
    theirs.register("rows", rows)
    with Client(server.location) as client:
        for condition in ["i > 3", "f > 1", "f <= 0", "s LIKE 'a%' AND i IS NOT NULL", "d < DATE '2019-09-01' OR j = 0", "i = 99"]:
            expected = theirs.execute(f"SELECT j FROM rows WHERE {condition}").fetchall()
            found = client.batches(dataset="rows", select=["j"], filter=condition, **IN_ORDER)
            assert [each for batch in found for each in batch.data.column("j").to_pylist()] == [row[0] for row in expected]


def read_bytes(server: Any) -> float:
    _, text = server.http_get("/metrics")
    lines = (line.split() for line in text.splitlines() if line.startswith("forebay_storage_read_bytes_total"))
    return sum(float(line[1]) for line in lines)


def test_a_filter_on_30_of_400_daily_partitions_reads_only_those(pool: Pool, tmp_path: Path) -> None:
    days = [f"day=2024-{1 + day // 28:02}-{1 + day % 28:02}" for day in range(336)]
    days += [f"day=2025-{1 + day // 28:02}-{1 + day % 28:02}" for day in range(64)]
    rng = np.random.default_rng(0)
    month = [day for day in days if day.startswith("day=2024-05") or day in ("day=2024-06-01", "day=2024-06-02")]
    assert (len(days), len(month)) == (400, 30)
    for day in days:
        rows = pa.table({f"c{column}": rng.random(5000) for column in range(4)})
        for folder in ["all"] + ["month"] * (day in month):
            (tmp_path / folder / day).mkdir(parents=True)
            pq.write_table(rows, tmp_path / folder / day / "part-0.parquet")
    both = {}
    for name, condition in [("all", "day BETWEEN '2024-05-01' AND '2024-06-02'"), ("month", "")]:
        server = pool.start({name: tmp_path / name}, cache_dir=tmp_path / f"cache-{name}")
        before = read_bytes(server)
        with Client(server.location) as client:
            batches = client.batches(dataset=name, filter=condition, columns=["c0", "c1", "c2", "c3"], batch_size=4096)
            rows = sum(batch.data.num_rows for batch in batches)
        both[name] = (rows, read_bytes(server) - before)
        server.stop()
    assert both["all"][0] == both["month"][0] == 150_000
    assert both["all"][1] == pytest.approx(both["month"][1], rel=0.02)


def test_count_rows_reports_progress_and_counts_once(pool: Pool, tmp_path: Path) -> None:
    for part in range(8):
        rows = pa.table({"id": pa.array(range(part * 20_000, part * 20_000 + 20_000)), "x": [1.0] * 20_000})
        (tmp_path / "rows").mkdir(exist_ok=True)
        pq.write_table(rows, tmp_path / "rows" / f"{part}.parquet")
    server = pool.start({"rows": tmp_path / "rows"}, cache_dir=tmp_path / "cache")
    request = {"train": {"dataset": "rows", "batch_size": 10, "filter": "id >= 50000 AND id % 2 = 0"}}
    with Client(server.location) as client:
        progress = client.action("count-rows", request)
        assert len(progress) == 9, "one result for each block, and the final one"
        for result in progress[7:]:
            done = {name: int(value) for name, value in result.items()}
            assert done == {"blocks": 8, "blocks_done": 8, "blocks_read": 6, "rows": 160_000, "rows_kept": 55_000}
        assert int(client.plan(**request["train"]).summary["rows"]) == 55_000
    server.kill()
    # Counts are kept after the server stops.
    server = pool.start({"rows": tmp_path / "rows"}, cache_dir=tmp_path / "cache")
    with Client(server.location) as client:
        before = read_bytes(server)
        (last,) = client.action("count-rows", request)
        assert (int(last["rows_kept"]), read_bytes(server)) == (55_000, before)


def test_bloom_filters_and_page_indexes_of_other_writers_avoid_reads(pool: Pool, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb has no wheel for this Python")
    users = [f"u{user}" for user in range(0, 4000, 2)]
    for part in range(4):
        rows = pa.table({"page": [row // 1000 for row in range(20_000)], "user": users * 10})
        (tmp_path / "rows").mkdir(exist_ok=True)
        if part % 2:
            duckdb.sql("COPY rows TO '%s' (FORMAT parquet)" % (tmp_path / "rows" / f"{part}.parquet"))
        else:
            pq.write_table(
                rows,
                tmp_path / "rows" / f"{part}.parquet",
                write_page_index=True,
                max_rows_per_page=1000,
                write_batch_size=1000,
                use_dictionary=False,
                bloom_filter_options={"user": {"ndv": 2000, "fpp": 0.01}},
            )
    server = pool.start({"rows": tmp_path / "rows"})
    with Client(server.location) as client:
        # DuckDB writes Bloom filters but no page indexes.
        for condition, kept, read in [
            ("user = 'u1001'", 0, 0),
            ("user IN ('u7', 'u1002')", 40, 4),
            ("page IN (3, 17)", 8000, 2),
            ("page % 2 = 0", 40_000, 4),
        ]:
            request = {"train": {"dataset": "rows", "batch_size": 10, "filter": condition}}
            done = client.action("count-rows", request)[3]
            assert (int(done["rows_kept"]), int(done["blocks_read"])) == (kept, read), condition


def test_an_invalid_expression_is_rejected_by_name(pool: Pool, tmp_path: Path) -> None:
    pq.write_table(table(0), tmp_path / "rows.parquet")
    server = pool.start({"rows": tmp_path / "rows.parquet"})
    with Client(server.location) as client:
        for request, words in [
            ({"select": ["smal + 1 AS x"]}, ["select[0]", "no column 'smal'", "did you mean 'small'"]),
            ({"select": ["i", "random() AS r"]}, ["select[1]", "random"]),
            ({"select": ["(SELECT 1) AS r"]}, ["select[0]", "not an expression of one row"]),
            ({"filter": "i"}, ["filter", "expected a boolean"]),
            ({"filter": "i >"}, ["filter", "expected"]),
            ({"filter": "(" * 5000}, ["filter", "2048"]),
        ]:
            with refused("INVALID_ARGUMENT", *words):
                client.plan(dataset="rows", batch_size=10, **request)
        # A row without a result is an error that names its file and row group.
        with refused("INVALID_ARGUMENT", "'y'", "rows.parquet, row group 0", "overflow"):
            list(client.batches(dataset="rows", select=["j * 2 AS y"], batch_size=10))
        with refused("INVALID_ARGUMENT", "'filter'", "divide by zero"):
            client.plan(dataset="rows", batch_size=10, filter="1 / i > 3")
