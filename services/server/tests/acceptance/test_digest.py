"""The test client computes the digest as documented in docs/reference/protocol.md."""

from __future__ import annotations

import pyarrow as pa

from digest import digest_of

EXAMPLE = pa.record_batch(
    {
        "i": pa.array([1, None, 3, -4], pa.int32()),
        "s": pa.array(["a", "", None, "xyz"]),
        "b": pa.array([True, False, None, True]),
        "l": pa.array([[1, None], None, [], [4]], pa.list_(pa.int32())),
    }
)


def test_the_documented_example_has_the_documented_digest() -> None:
    assert digest_of([EXAMPLE]) == "db244c26f8e28430"


def test_the_digest_does_not_depend_on_where_batches_are_cut() -> None:
    for cut in range(5):
        assert digest_of([EXAMPLE.slice(0, cut), EXAMPLE.slice(cut)]) == digest_of([EXAMPLE])
