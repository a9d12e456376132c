"""Trainings of `forebay.open` continue if the cache folder or the runtime folder is removed, as by a clean-up or at the end of a login."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from test_open import Host, host  # noqa: F401

pytestmark = [pytest.mark.once, pytest.mark.skipif(sys.platform != "linux", reason="the tests find the server with SO_PEERCRED")]

ROWS = """
import shutil
import pyarrow as pa, pyarrow.parquet as pq

def written(name, rows=200_000):
    path = Path(sys.argv[1], name)
    pq.write_table(pa.table({"n": range(rows)}), path, row_group_size=10_000)
    return path

def numbers(batches):
    return [batch["n"].to_numpy().tolist() for batch in batches]
"""


def test_datasets_that_a_restarted_server_lacks_are_opened_again(host: Host, tmp_path: Path) -> None:  # noqa: F811
    program = (
        ROWS
        + """
def lose_all():
    shutil.rmtree(os.environ["XDG_CACHE_HOME"])
    kill_server()

ds, mixed = forebay.open(written("rows.parquet"), key="n", retry_deadline=30), forebay.open(written("more.parquet"), retry_deadline=30)
options = dict(batch_size=5000, seed=3)
expected, mixture = numbers(ds.train(**options)), numbers(ds.train(**options, mix={mixed.name: 0.5}))
training = ds.train(**options, mix={mixed.name: 0.5})
found = []
for batch in training:
    found.append(batch["n"].to_numpy().tolist())
    if batch.step == 3:
        lose_all()
assert found == mixture
for use in (
    lambda: numbers(ds.train(**options)) == expected,
    lambda: numbers(ds.train(**options, mix={mixed.name: 0.5})) == mixture,
    lambda: sum(ds.train(**options).map(len, workers=1)) == 200_000,
    lambda: ds.lookup({"n": [7]})["n"].to_numpy().tolist() == [7],
    lambda: ds.client.dataset(ds.name).rows == 200_000,
    lambda: ds.num_rows == 200_000,
):
    lose_all()
    assert use()
lose_all()
try:
    ds.client.train("absent", batch_size=1).num_rows
except forebay.errors.NotFoundError as error:
    print(str(error).partition(";")[0])
"""
    )
    assert host.run(program, tmp_path) == "there is no dataset 'absent'"


@pytest.mark.parametrize("is_back", [False, True])
def test_a_training_continues_with_its_settings_and_its_cache_if_the_runtime_folder_is_removed(host: Host, tmp_path: Path, is_back: bool) -> None:  # noqa: F811
    program = (
        ROWS
        + """
from forebay.local import local_server

runtime, tmp = Path(os.environ["XDG_RUNTIME_DIR"]), Path(os.environ["TMPDIR"])
# A start of an earlier login has no effect.
(tmp / f"forebay-{os.geteuid()}").mkdir(mode=0o700)
(tmp / f"forebay-{os.geteuid()}" / "last-start.json").write_text('{"settings": {"cache_memory": "64MiB"}}')
ds, mixed = (forebay.open(written(name), cache_memory="128MiB", retry_deadline=60) for name in ("rows.parquet", "more.parquet"))
training = ds.train(batch_size=5000, seed=3, shuffle=20_000, mix={mixed.name: 0.5})
state, before = training.state_dict(), local_server().last_start()
first, second = numbers(training), numbers(training)
training.load_state_dict(state)
found = []
for batch in training:
    found.append(batch["n"].to_numpy().tolist())
    if batch.step == 3:
        shutil.rmtree(runtime)
        if sys.argv[2] == "True":
            runtime.mkdir(mode=0o700)
assert found == first
assert numbers(training) == second
assert forebay.open(sys.argv[1] + "/rows.parquet", cache_memory="128MiB").num_rows == ds.num_rows == 200_000
after, folder = local_server().last_start(), local_server().folder
assert folder == (runtime if sys.argv[2] == "True" else tmp / f"forebay-{os.geteuid()}") / ("forebay" if sys.argv[2] == "True" else ""), folder
assert after["pid"] != before["pid"]
print(after["settings"], after["cache_dir"] == before["cache_dir"])
"""
    )
    assert host.run(program, tmp_path, is_back, FOREBAY_EXIT_WHEN_IDLE="2s") == "{'cache_memory': '128MiB'} True"
