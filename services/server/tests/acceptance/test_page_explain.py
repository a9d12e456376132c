"""The section "Explain a batch" of the dashboard: its content matches the API, and its downloads equal the sent batch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from browser import Opened, opened
from client import Batch, Client
from digest import digest_of
from server import Pool, Server, until
from test_page import POOR_CONTRAST, SCREENSHOTS, chromium, get, url  # noqa: F401

ROWS, FILES, GROUP_ROWS = 20_000, 3, 1000
BATCH_ROWS, RANKS, STEPS = 500, 2, 20
# 64-bit floats cannot represent such large integers exactly.
FIRST_ID = 2**60 + 1
REQUEST = {"dataset": "clicks", "batch_size": BATCH_ROWS, "world_size": RANKS, "shuffle": {"global": {}}, "label_column": "click"}
STEP, RANK = 13, 1


def write(folder: Path) -> Path:
    folder.mkdir()
    for part in range(FILES):
        rows = range(part, ROWS, FILES)
        columns = {
            "id": pa.array([FIRST_ID + row for row in rows], pa.int64()),
            "price": pa.array([None if row % 11 == 0 else float("nan") if row % 17 == 0 else row * 0.37 for row in rows]),
            # The page must display markup in values as text.
            "name": [f"<b>row {row}</b>" for row in rows],
            "click": pa.array([None if row % 101 == 0 else row % 3 == 0 for row in rows], pa.bool_()),
        }
        pq.write_table(pa.table(columns), folder / f"part-{part}.parquet", row_group_size=GROUP_ROWS)
    return folder


@dataclass
class Past:
    """A server with two past jobs of the same name and two running ones: the last batch of the second past job, and the id of
    the first."""

    server: Server
    sent: Batch
    before: str

    def explanation(self, **asked: object) -> dict[str, Any]:
        return get(self.server, f"explain?{urlencode({'job_name': 'ctr-v3', 'step': STEP, 'rank': RANK, **asked})}")


@pytest.fixture(scope="module")
def past(module_pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    server = module_pool.start({"clicks": write(tmp_path_factory.mktemp("explain") / "clicks")})
    with Client(server.location) as client:
        list(client.batches(**REQUEST, job_name="ctr-v3", seed=1, rank=RANK, steps=1))
        until(lambda: len(get(server, "jobs")["jobs"]) == 1)
        (before,) = get(server, "jobs")["jobs"]
        *_, sent = client.batches(**REQUEST, job_name="ctr-v3", seed=2, rank=RANK, steps=STEP + 1)
        # Two running jobs, one of them without a name.
        running = [client.batches(**REQUEST, **more, rank=RANK, epochs=1000) for more in ({"job_name": "runs"}, {"seed": 3})]
        for stream in running:
            next(stream)
        until(lambda: len(get(server, "jobs")["jobs"]) == 4)
        yield Past(server, sent, before["id"])
        for stream in running:
            stream.close()


@pytest.fixture
def page(chromium: Any, past: Past) -> Iterator[Opened]:  # noqa: F811
    """The dashboard with its jobs listed. After each test, it must have no policy violations, no errors, and no requests to
    other hosts."""
    with opened(chromium, url(past.server)) as seen:
        list_jobs(seen)
        yield seen
        assert seen.violations() == []
        assert seen.errors == []
        assert seen.hosts <= {past.server.http, ""}


def list_jobs(seen: Opened) -> None:
    seen.page.get_by_test_id("explain").scroll_into_view_if_needed()
    until(lambda: seen.page.locator("#explain-job option").count() == 4)


def ask(seen: Opened, step: int = STEP, rank: int = RANK, job: str = "ctr-v3 · clicks") -> None:
    seen.page.get_by_test_id("explain-job").select_option(label=job)
    seen.page.get_by_test_id("explain-step").fill(str(step))
    seen.page.get_by_test_id("explain-rank").fill(str(rank))
    seen.page.get_by_test_id("explain-ask").click()


def answered(seen: Opened, step: int = STEP) -> None:
    until(lambda: figures(seen).get("step") == f"{step} of {STEPS}" and not seen.text("explain-status").startswith("Reconstructing"))


def figures(seen: Opened) -> dict[str, str]:
    pairs = "all => all.map(one => [...one.children].map(part => part.innerText))"
    return dict(seen.page.eval_on_selector_all("#explain-answer .figure", pairs))


def table(seen: Opened, name: str) -> list[list[str]]:
    cells = "rows => rows.map(row => [...row.children].map(cell => cell.innerText))"
    return seen.page.eval_on_selector_all(f"[aria-label='{name} of the batch'] tbody tr", cells)


def is_shown(words: str, value: Any) -> bool:
    if isinstance(value, float):
        return float(words) == pytest.approx(value, rel=1e-4, abs=1e-6)
    return words == ("–" if value is None else value if isinstance(value, str) else json.dumps(value))


def test_the_shown_explanation_matches_the_api(page: Opened, past: Past) -> None:
    ask(page)
    answered(page)
    expected, shown = past.explanation(), figures(page)
    assert shown["job"] == "ctr-v3" and shown["rank"] == f"{RANK} of {RANKS}"
    assert (shown["dataset"], shown["snapshot"], shown["job id"]) == (expected["dataset"], expected["snapshot"], expected["id"])
    assert all(shown[name] == f"{expected[name]:,}" for name in ("epoch", "rows", "position"))
    assert (shown["body"], shown["XXH3-64"]) == (f"{expected['body_bytes']:,} bytes", expected["content_hash"])
    assert int(shown["XXH3-64"], 16) == past.sent.meta.content_hash
    label = expected["label"]
    words = shown["label click"]
    assert words.endswith(f", false to true, {label['nulls']} nulls")
    assert is_shown(words.removeprefix("mean ").partition(",")[0], label["mean"])

    columns = table(page, "Columns")
    assert [row[:2] for row in columns] == [[column["name"], column["type"]] for column in expected["columns"]]
    for row, column in zip(columns, expected["columns"]):
        for words, name in zip(row[2:], ("nulls", "nans", "min", "max", "mean")):
            assert is_shown(words, column[name]), (row, column)

    pieces = table(page, "Row groups")
    assert len(pieces) == len(expected["row_ranges"]) == expected["row_range_count"] > FILES
    for row, piece in zip(pieces, expected["row_ranges"]):
        assert row[:4] == [piece["file"], piece["dataset"], str(piece["row_group"]), str(piece["row_count"])]
        listed, _, more = row[4].partition(" and ")
        numbers = [int(number) for number in listed.split()]
        assert numbers == piece["rows"][: len(numbers)]
        assert more == (f"{left} more" if (left := piece["row_count"] - len(numbers)) else "")


def test_the_downloaded_batch_equals_the_sent_one(page: Opened, past: Past, tmp_path: Path) -> None:
    ask(page)
    answered(page)
    for name in ("Parquet", "Arrow", "JSON"):
        with page.page.expect_download() as started:
            page.page.get_by_test_id("explain-answer").get_by_role("link", name=name, exact=True).click()
        assert started.value.suggested_filename.endswith(f"-0-{STEP}-{RANK}.{name.lower()}")
        started.value.save_as(tmp_path / name)
    wanted = digest_of([past.sent.data])
    assert digest_of(pq.read_table(tmp_path / "Parquet").to_batches()) == wanted
    (arrow,) = pa.ipc.open_stream((tmp_path / "Arrow").read_bytes())
    assert arrow.serialize() == past.sent.data.serialize()
    rows = json.loads((tmp_path / "JSON").read_text())
    assert [row["id"] for row in rows] == past.sent.data.column("id").to_pylist()


def test_errors_of_the_server_are_shown(page: Opened, past: Past) -> None:
    ask(page)
    answered(page)
    ask(page, step=STEPS)
    trouble = page.page.get_by_test_id("explain-error")
    trouble.wait_for(state="visible")
    _, body = past.server.http_get(f"/api/v1/explain?job_name=ctr-v3&step={STEPS}&rank={RANK}")
    assert trouble.get_attribute("role") == "alert" and json.loads(body)["error"] in trouble.inner_text()
    assert not page.page.get_by_test_id("explain-answer").is_visible()
    # The browser logs every failed request to the console.
    assert all("400" in error for error in page.errors)
    page.errors.clear()
    # The page itself rejects ranks that the job does not have.
    ask(page, rank=RANKS)
    assert page.page.get_by_test_id("explain-rank").evaluate("input => input.validity.rangeOverflow")
    ask(page)
    answered(page)
    assert not trouble.is_visible()


def test_a_second_request_replaces_the_first(page: Opened) -> None:
    held: list[Any] = []
    page.page.route("**/explain?*&step=3&*", lambda route: held.append(route))
    ask(page, step=3)
    until(lambda: page.text("explain-status").startswith("Reconstructing") and bool(held))
    ask(page, step=4)
    answered(page, step=4)
    page.page.wait_for_timeout(300)
    assert figures(page)["step"] == f"4 of {STEPS}" and not page.page.get_by_test_id("explain-error").is_visible()


def test_the_latest_batch_of_a_session_is_explained(page: Opened, past: Past) -> None:
    def running() -> dict[str, Any]:
        return next(session for session in get(past.server, "sessions")["sessions"] if session["job_name"])

    (button,) = page.page.locator("#sessions-body").get_by_role("button", name="Explain the newest batch").all()
    before = running()
    button.press("Enter")
    until(lambda: figures(page).get("job") == "runs")
    jobs = {job["job_name"]: job["id"] for job in get(past.server, "jobs")["jobs"]}
    shown = {name: page.page.get_by_test_id(f"explain-{name}").input_value() for name in ("job", "epoch", "step", "rank")}
    assert (shown["job"], shown["rank"]) == (jobs["runs"], str(RANK))
    at, after = (int(shown["epoch"]), int(shown["step"])), running()
    assert (before["epoch"], before["step"]) <= at <= (after["epoch"], after["step"])
    assert figures(page)["step"] == f"{at[1]} of {STEPS}"
    assert page.page.evaluate("document.activeElement.id") == "explain-step"
    assert page.page.get_by_test_id("explain-step").evaluate("input => input.getBoundingClientRect().bottom <= innerHeight")


def test_other_jobs_of_the_same_name_are_linked(page: Opened, past: Past) -> None:
    ask(page)
    answered(page)
    page.page.get_by_test_id("explain-answer").get_by_role("button", name=past.before).press("Enter")
    until(lambda: figures(page)["job id"] == past.before)
    assert figures(page)["XXH3-64"] == past.explanation(job_name=past.before)["content_hash"]
    assert page.page.get_by_test_id("explain-job").input_value() == past.before


def test_keyboard_navigation_works_and_requests_are_not_repeated(page: Opened) -> None:
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url))
    page.page.get_by_test_id("explain-job").focus()
    for wanted in ("explain-epoch", "explain-step", "explain-rank", "explain-ask"):
        page.page.keyboard.press("Tab")
        name, outline = page.page.evaluate(
            "[document.activeElement.id, getComputedStyle(document.activeElement).outlineStyle]"
        )
        assert name == wanted and outline != "none"
    page.page.get_by_test_id("explain-step").press("Enter")
    answered(page, step=0)
    page.page.wait_for_timeout(2500)
    assert len([path for path in asked if "/explain?" in path]) == 1
    assert not [path for path in asked if path.endswith("/jobs")]
    page.page.get_by_test_id("explain-reload").press("Enter")
    until(lambda: len([path for path in asked if path.endswith("/jobs")]) == 1)


def test_without_jobs_the_page_explains_how_to_record_one(chromium: Any, pool: Pool, tmp_path: Path) -> None:  # noqa: F811
    server = pool.start({"clicks": write(tmp_path / "clicks")})
    with opened(chromium, url(server)) as seen:
        seen.page.get_by_test_id("explain").scroll_into_view_if_needed()
        seen.page.get_by_test_id("explain-empty").wait_for(state="visible")
        assert "job_name=" in seen.text("explain-empty") and not seen.page.get_by_test_id("explain-ask").is_visible()
        with Client(server.location) as client:
            list(client.batches(**REQUEST, job_name="first", rank=0, steps=1))
        until(lambda: len(get(server, "jobs")["jobs"]) == 1)
        seen.page.get_by_test_id("explain-reload").press("Enter")
        ask(seen, 0, 0, "first · clicks")
        answered(seen, 0)
        assert not seen.page.get_by_test_id("explain-empty").is_visible() and seen.errors == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_explanation_fits_and_text_has_enough_contrast(chromium: Any, past: Past, width: int, theme: str) -> None:  # noqa: F811
    with opened(chromium, url(past.server), width, theme) as seen:
        list_jobs(seen)
        ask(seen)
        answered(seen)
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        seen.page.get_by_test_id("explain").screenshot(path=SCREENSHOTS / f"explain-{width}-{theme}.png")
        assert seen.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        assert seen.page.evaluate(POOR_CONTRAST) == []
        assert seen.violations() == [] and seen.errors == []
