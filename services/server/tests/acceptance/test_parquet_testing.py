"""Files of apache/parquet-testing are read with the values that pyarrow reads, and rejected where pyarrow rejects them,
except for the files in `DIFFERENT`.

The environment variable PARQUET_TEST_DATA is the folder `data` of a checkout of https://github.com/apache/parquet-testing, as in the
tests of Arrow. Other folders of the checkout are read, too, if they exist. `DIFFERENT` was made with its commit 1a2a751.

`parquet_outcomes.txt` has the outcome of each file of the folders `data` and `bad_data`. FOREBAY_BLESS=1 writes it anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from client import FAILURES, Client, status_of
from digest import digest_of
from server import Pool
from test_types import same_type, with_dates_as

DATA = os.environ.get("PARQUET_TEST_DATA")
ROOT = Path(DATA).parent if DATA else None
pytestmark = pytest.mark.skipif(ROOT is None, reason="PARQUET_TEST_DATA is not set")
REJECTIONS = {"DATA_LOSS", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"}

# Why the result differs from that of pyarrow.
DIFFERENT = {
    "data/dict-page-offset-zero.parquet": "Only pyarrow reads it. The metadata of its column has a list in field 15, which is "
    "the integer bloom_filter_length in the format. parquet-rs would decode the list as an integer.",
    "data/incorrect_map_schema.parquet": "pyarrow rejects it. The keys of its map are optional, which the format forbids. None "
    "of them is null.",
    "data/int96_from_spark.parquet": "Its INT96 timestamps of the years 9999 and 290000 exceed the range of nanoseconds. pyarrow "
    "wraps around to wrong values, the server rejects them.",
    "data/nation.dict-malformed.parquet": "Only pyarrow reads it. The length of its column chunks lacks the header of the "
    "dictionary page, an error of parquet-mr before 1.2.9. pyarrow reads up to 100 bytes beyond such a chunk.",
    "shredded_variant/case-037.parquet": "Its column of type UUID is delivered as FixedSizeBinary(16). pyarrow reads the "
    "extension type arrow.uuid.",
}


def files() -> dict[str, Path]:
    if ROOT is None:
        return {}
    found = (path for path in sorted(ROOT.rglob("*")) if path.suffix in {".parquet", ".encrypted"})
    return {str(path.relative_to(ROOT)): path for path in found}


FILES = files()


@pytest.fixture(scope="module")
def client(module_pool: Pool) -> Iterator[Client]:
    names = {f"file-{number}": path for number, path in enumerate(FILES.values())}
    with Client(module_pool.start(names).location) as opened:
        yield opened


def read(path: Path) -> pa.Table | Exception:
    try:
        return pq.ParquetFile(path, page_checksum_verification=True).read()
    except (pa.ArrowException, OSError) as error:
        return error


def stream(client: Client, dataset: str, **request: Any) -> pa.Table | Exception:
    try:
        return client.table(dataset=dataset, batch_size=137, shuffle={"none": {}}, **request)
    except FAILURES as error:
        return error


def difference(got: pa.Table | Exception, expected: pa.Table | Exception) -> str | None:
    if isinstance(got, Exception):
        return None if isinstance(expected, Exception) else f"rejected: {got}"
    if isinstance(expected, Exception):
        return f"pyarrow rejects it: {expected}"
    if got.column_names != expected.column_names:
        return f"columns {got.column_names}, expected {expected.column_names}"
    expected = with_dates_as(got.schema, expected)
    for received, wanted in zip(got.schema, expected.schema):
        if not same_type(received.type, wanted.type):
            return f"{received}, expected {wanted}"
    return None if digest_of(got.to_batches()) == digest_of(expected.to_batches()) else "other values"


OUTCOMES = Path(__file__).with_name("parquet_outcomes.txt")
LISTED = ("data", "bad_data")


def kind_of(error: Exception) -> str:
    """Returns what the server says about a file or column that it rejects."""
    kinds = {"DATA_LOSS": ("corrupt", " is corrupt"), "FAILED_PRECONDITION": ("not supported", " is not supported")}
    status = status_of(error)
    kind, words = kinds.get(status, (status, ""))
    assert words in str(error), f"{status} without '{words}': {error}"
    return kind


def outcome(client: Client, dataset: str, path: Path) -> str:
    """Returns `readable`, the kind of the rejection of the whole file, or that of each rejected column if others are readable."""
    got = stream(client, dataset)
    if not isinstance(got, Exception):
        return "readable"
    try:
        names = pq.read_schema(path).names
    except (pa.ArrowException, OSError):
        names = []
    alone = {name: stream(client, dataset, columns=[name]) for name in names}
    rejected = {name: kind_of(each) for name, each in alone.items() if isinstance(each, Exception)}
    if len(rejected) == len(names):
        return kind_of(got)
    return ", ".join(f"column {name} is {kind}" for name, kind in rejected.items())


def test_every_file_has_its_listed_outcome(client: Client) -> None:
    found = {
        name: outcome(client, f"file-{number}", path)
        for number, (name, path) in enumerate(FILES.items())
        if name.partition("/")[0] in LISTED
    }
    text = "".join(f"{name}: {each}\n" for name, each in found.items())
    if os.environ.get("FOREBAY_BLESS"):
        OUTCOMES.write_text(text)
    assert text.splitlines() == OUTCOMES.read_text().splitlines(), "FOREBAY_BLESS=1 writes the outcomes of all files"


def test_the_folder_is_parquet_testing() -> None:
    assert len(FILES) > 90, f"{ROOT} has {len(FILES)} files"
    there = {name for name in DIFFERENT if (ROOT / name).parent.is_dir()}
    assert sorted(there - FILES.keys()) == []


@pytest.mark.parametrize("number", range(len(FILES)), ids=FILES)
def test_file_has_the_values_that_pyarrow_reads(client: Client, number: int) -> None:
    name, path = list(FILES.items())[number]
    got = stream(client, f"file-{number}")
    if isinstance(got, Exception):
        assert status_of(got) in REJECTIONS and path.name in str(got)
    found = difference(got, read(path))
    if name in DIFFERENT:
        assert found, "remove it from DIFFERENT"
    else:
        assert found is None, found
