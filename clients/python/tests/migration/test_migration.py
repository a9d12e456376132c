"""Both sides of each migration read the same rows. A library that is not installed is a failure here."""

from __future__ import annotations

from pathlib import Path

import pytest

import migrations
from server import Server


@pytest.mark.parametrize("section", migrations.sections())
def test_both_sides_of_a_migration_read_the_same_rows(flights_server: Server, flights: Path, tmp_path: Path, section: str) -> None:
    migrations.check(section, flights_server.location, flights, tmp_path)


def test_the_page_has_the_libraries_that_users_come_from() -> None:
    found = migrations.sections()
    assert list(found) == ["PyTorch DataLoader over pyarrow", "Petastorm", "tf.data service", "Hugging Face datasets", "Ray Data"]
    assert all(len(blocks) == 2 for blocks in found.values())
