"""The HTTP API: authorization of each route, conformance to its OpenAPI document, read-only requests, and live updates."""

from __future__ import annotations

import hashlib
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from api import Answer, Listener, Message, ask, bearer, get, tune
from client import Client
from server import Pool, Server, replace, until

QUEUES = """
credentials_reload_interval = "100ms"
[online.users]
key = ["user_id"]
[online.items]
key = ["item_id"]
[queues.ranker.features]
dataset = "users"
[[queues.ranker.features.joins]]
dataset = "items"
[queues.ranker.batching]
max_batch_rows = 1000
"""

TOKENS: dict[str, str] = {
    "users": 'datasets = ["users"]',
    "all": 'datasets = ["*"]',
    "admin": 'datasets = ["*"]\nadmin = true',
    "old": 'datasets = ["*"]\nadmin = true\nexpires = 2020-01-01T00:00:00Z',
}

# Status of a request: without a valid token, with a token for one dataset, for all datasets, and of an administrator.
ANY_CLIENT, READERS, QUEUE_READERS = (200, 200, 200, 200), (401, 200, 200, 200), (401, 404, 200, 200)

# The routes of the OpenAPI document.
ROUTES: dict[tuple[str, str], tuple[int, int, int, int]] = {
    ("GET", "/livez"): ANY_CLIENT,
    ("GET", "/readyz"): ANY_CLIENT,
    ("GET", "/metrics"): (401, 403, 200, 200),
    ("GET", "/api/v1/overview"): READERS,
    ("GET", "/api/v1/sessions"): READERS,
    ("GET", "/api/v1/sessions/{id}"): READERS,
    ("GET", "/api/v1/stalls"): READERS,
    ("GET", "/api/v1/datasets"): READERS,
    ("GET", "/api/v1/queues"): READERS,
    ("GET", "/api/v1/queues/{name}"): QUEUE_READERS,
    ("GET", "/api/v1/queues/{name}/throughput-latency"): QUEUE_READERS,
    ("PATCH", "/api/v1/queues/{name}"): (401, 403, 403, 200),
    ("GET", "/api/v1/events"): READERS,
    ("GET", "/api/v1/callers"): (401, 403, 200, 200),
    # The server has no members.
    ("GET", "/api/v1/members"): (401, 403, 404, 404),
    ("GET", "/api/v1/live"): READERS,
    ("GET", "/api/v1/jobs"): READERS,
    ("GET", "/api/v1/explain"): READERS,
    # A query that is too long for a URL. It changes nothing.
    ("POST", "/api/v1/explain"): READERS,
    ("GET", "/api/v1/openapi.json"): READERS,
}
# Routes whose answers are not JSON.
TEXTS = ("/livez", "/metrics", "/api/v1/live")
# Requests that the document does not describe: files of the dashboard, unknown routes and methods.
OTHERS: dict[tuple[str, str], tuple[int, int, int, int]] = {
    ("GET", "/"): READERS,
    ("GET", "/page.js"): READERS,
    ("GET", "/page.css"): READERS,
    ("GET", "/icon.svg"): READERS,
    ("GET", "/api/v1/none"): (401, 404, 404, 404),
    ("POST", "/api/v1/none"): (401, 403, 403, 404),
    ("DELETE", "/api/v1/queues/{name}"): (401, 403, 403, 405),
    ("POST", "/api/v1/events"): (401, 403, 403, 405),
}


def write_tokens(path: Path, tokens: dict[str, str]) -> None:
    """Writes a token file from the fields of each token. The token of a name is `token-of-NAME`."""
    digest = {name: hashlib.sha256(f"token-of-{name}".encode()).hexdigest() for name in tokens}
    replace(path, "".join(f'[{name}]\nsha256 = "{digest[name]}"\n{grant}\n' for name, grant in tokens.items()))


def write_features(folder: Path) -> dict[str, Path]:
    for name, key, rows in (("users", "user_id", 5000), ("items", "item_id", 2000), ("payments", "id", 10)):
        numbers = np.arange(rows)
        # The queue joins datasets, so their columns need different names.
        value = "f" if name == "users" else f"{name}_f"
        table = pa.table({key: numbers, value: numbers.astype(np.float32)})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=1000)
    return {name: folder / f"{name}.parquet" for name in ("users", "items", "payments")}


def start(pool: Pool, folder: Path, env: dict[str, str] | None = None, config: str = "", **flags: object) -> Server:
    (folder / "forebay.toml").write_text(QUEUES + config)
    return pool.start(write_features(folder), config=folder / "forebay.toml", env=env, **flags)


@pytest.fixture(scope="module")
def locked(module_pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server with tokens."""
    folder = tmp_path_factory.mktemp("api")
    write_tokens(folder / "tokens.toml", TOKENS)
    server = start(module_pool, folder, tokens=folder / "tokens.toml")
    # The event of a dataset is recorded a moment after it is open.
    until(lambda: len(get(server, "/api/v1/events", "all")["events"]) >= 3)
    return server


@pytest.fixture(scope="module")
def open_server(module_pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server without tokens."""
    return start(module_pool, tmp_path_factory.mktemp("open"))


@dataclass
class Known:
    """The id of a session that the server lists, and the ticket of its stream. Its job is named `a job`."""

    session: str
    ticket: bytes

    def path(self, template: str) -> str:
        path = template.replace("{name}", "ranker").replace("{id}", self.session)
        return {"/api/v1/explain": "/api/v1/explain?job_name=a%20job&step=0"}.get(path, path)

    def body(self, method: str) -> bytes | None:
        return {"PATCH": b'{"max_attempts": 2}', "POST": self.ticket}.get(method)


@pytest.fixture(scope="module")
def known(locked: Server) -> Iterator[Known]:
    client = flight.connect(locked.location)
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer token-of-users")])
    train = b'{"train": {"dataset": "users", "batch_size": 10, "epochs": 1000, "job_name": "a job"}}'
    info = client.get_flight_info(flight.FlightDescriptor.for_command(train), options)
    ticket = info.endpoints[0].ticket
    batches = client.do_get(ticket, options)
    batches.read_chunk()
    until(lambda: bool(get(locked, "/api/v1/sessions", "users")["sessions"]))
    until(lambda: bool(get(locked, "/api/v1/jobs", "users")["jobs"]))
    (session,) = get(locked, "/api/v1/sessions", "users")["sessions"]
    yield Known(session["id"], ticket.ticket)
    batches.cancel()
    client.close()


@pytest.fixture(scope="module")
def document(locked: Server) -> dict[str, Any]:
    return get(locked, "/api/v1/openapi.json", "users")


@pytest.mark.parametrize(("method", "path"), [*ROUTES, *OTHERS], ids=" ".join)
def test_routes_require_a_token_and_changes_require_an_administrator(
    locked: Server, known: Known, method: str, path: str
) -> None:
    invalid, one, everything, admin = {**ROUTES, **OTHERS}[method, path]
    expected = {None: invalid, "unknown": invalid, "old": invalid, "users": one, "all": everything, "admin": admin}
    path, body = known.path(path), known.body(method)
    found = {}
    for name in expected:
        answer = ask(locked, method, path, body, content_type="application/json", **bearer(name))
        found[name] = answer.status
        if answer.status >= 400:
            assert answer.error, "an error has a message"
        if answer.status == 401:
            assert "Basic" in answer.headers["www-authenticate"], "browsers ask their user for the token"
    assert found == expected


def test_the_openapi_document_is_valid_and_describes_the_routes_of_this_table(document: dict[str, Any]) -> None:
    OpenAPIV31SpecValidator(document).validate()
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert described == set(ROUTES)


def check_schema(document: dict[str, Any], answer: Answer, method: str, path: str) -> None:
    described = document["paths"][path][method.lower()]["responses"][str(answer.status)]["content"]
    schema = described[answer.headers.get_content_type()]["schema"]
    Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json)


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if route[1] not in TEXTS], ids=" ".join)
def test_answers_match_their_schemas(
    locked: Server, document: dict[str, Any], known: Known, method: str, path: str
) -> None:
    for name in ("users", "admin"):
        body = known.body(method)
        answer = ask(locked, method, known.path(path), body, content_type="application/json", **bearer(name))
        check_schema(document, answer, method, path)
        if path == "/api/v1/sessions":
            (session,) = answer.json["sessions"]
            assert session["job_name"] == "a job" and session["batches_total"] == 500_000 and session["client"] is None


def test_live_messages_and_answers_to_changes_match_their_schemas(
    locked: Server, document: dict[str, Any]
) -> None:
    schema = document["paths"]["/api/v1/live"]["get"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    validator = Draft202012Validator({**schema, "components": document["components"]})
    with Listener(locked, "admin", last_event_id="0") as listener:
        messages = listener.messages()
        validator.validate(next(messages).data)
        event = next(message for message in messages if message.kind == "event")
        assert event.id == event.data["id"] == 1
        schema = document["components"]["schemas"]["Event"]
        Draft202012Validator({**schema, "components": document["components"]}).validate(event.data)
    for change, status in [({"max_attempts": 2}, 200), ({"max_attempts": 0}, 422)]:
        answer = tune(locked, change, "admin", "?dry_run")
        assert answer.status == status
        check_schema(document, answer, "PATCH", "/api/v1/queues/{name}")


def test_every_reader_of_a_queue_may_request_a_dry_run(locked: Server, open_server: Server) -> None:
    for name, status in [("all", 200), ("admin", 200), ("users", 404), (None, 401)]:
        assert tune(locked, {"max_batch_rows": 7}, name, "?dry_run").status == status, name
        for query in ("", "?dry_run=false"):
            refused = 403 if name in ("all", "users") else status
            if name != "admin":
                assert tune(locked, {"max_batch_rows": 7}, name, query).status == refused, (name, query)
    assert tune(open_server, {"max_batch_rows": 7}, query="?dry_run").json["batching"]["max_batch_rows"] == 7
    for server, name in ((locked, "admin"), (open_server, None)):
        assert get(server, "/api/v1/queues/ranker", name)["batching"]["max_batch_rows"] == 1000


def test_get_and_head_change_nothing(locked: Server, known: Known) -> None:
    def seen() -> tuple[Any, Any]:
        queues, events = get(locked, "/api/v1/queues", "admin"), get(locked, "/api/v1/events", "admin")
        # Trainers cause other events in the meantime.
        tunings = [event for event in events["events"] if event["kind"] == "queue_settings_changed"]
        return [queue["batching"] for queue in queues["queues"]], tunings

    before = seen()
    for method, path in {**ROUTES, **OTHERS}:
        path = path.replace("{name}", "ranker").replace("{id}", known.session)
        for query in ("", "?dry_run", "?max_batch_rows=1", "?method=PATCH&_method=PATCH"):
            body = b'{"max_batch_rows": 1}'
            override = {"x_http_method_override": "PATCH", "content_type": "application/json"}
            assert ask(locked, "GET", path + query, body, **override, **bearer("admin")).status in (200, 400, 404), path
            assert ask(locked, "HEAD", path + query, **bearer("admin")).status in (200, 400, 404), path
    assert seen() == before


def test_without_tokens_every_client_reads_and_changes_require_insecure(
    open_server: Server, pool: Pool, tmp_path: Path
) -> None:
    assert get(open_server, "/api/v1/overview")["server"]["can_administer"] is False
    refused = tune(open_server, {"max_batch_rows": 10})
    assert refused.status == 403
    for words in ("--tokens", "admin = true", "--insecure"):
        assert words in refused.error
    insecure = start(pool, tmp_path, env={"FOREBAY_INSECURE": "true"})
    assert get(insecure, "/api/v1/overview")["server"]["can_administer"] is True
    assert tune(insecure, {"max_batch_rows": 10}).json["batching"]["max_batch_rows"] == 10


def test_a_change_must_be_small_json_from_the_same_site(locked: Server) -> None:
    for headers, status, words in [
        ({"content_type": "text/plain"}, 415, "application/json"),
        ({"content_type": "application/x-www-form-urlencoded"}, 415, "application/json"),
        ({"sec_fetch_site": "cross-site"}, 403, "another site"),
        ({"sec_fetch_site": "same-site"}, 403, "another site"),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 403, "another site"),
        ({"origin": "http://evil.example"}, 403, "another site"),
        ({"origin": "null"}, 403, "another site"),
    ]:
        refused = tune(locked, {"max_attempts": 3}, "admin", **headers)
        assert refused.status == status and words in refused.error, headers
    for headers in ({"sec_fetch_site": "same-origin"}, {"sec_fetch_site": "none"}, {"origin": f"http://{locked.http}"}):
        assert tune(locked, {"max_attempts": 2}, "admin", **headers).status == 200, headers
    long = tune(locked, {"pad_to": [1] * 600_000}, "admin")
    assert long.status == 413 and long.error
    sizes = tune(locked, {"pad_to": [1] * 65}, "admin", "?dry_run")
    assert sizes.status == 422 and "pad_to has 65 sizes, expected at most 64" in sizes.error
    assert tune(locked, {}, "admin", "?dryrun").status == 400, "a misspelled parameter changes nothing"
    assert get(locked, "/api/v1/queues/ranker", "admin")["batching"]["max_attempts"] == 2


def test_dns_rebinding_is_rejected(open_server: Server, locked: Server) -> None:
    refused = ask(open_server, "GET", "/api/v1/datasets", host="evil.example:8816")
    assert refused.status == 403 and "localhost" in refused.error
    for host in ("localhost", "127.0.0.1:1", "[::1]"):
        assert ask(open_server, "GET", "/api/v1/datasets", host=host).status == 200, host
    # With tokens, any host is accepted: a page of another site has no token.
    assert ask(locked, "GET", "/api/v1/datasets", host="evil.example").status == 401
    assert ask(locked, "GET", "/api/v1/datasets", host="forebay.example", **bearer("all")).status == 200


def test_pages_of_other_sites_cannot_read_but_may_link_to_the_dashboard(open_server: Server) -> None:
    assert ask(open_server, "GET", "/api/v1/live", sec_fetch_site="cross-site", sec_fetch_mode="cors").status == 403
    assert ask(open_server, "GET", "/", sec_fetch_site="cross-site", sec_fetch_mode="navigate").status == 200


def test_answers_have_security_headers_and_unchanged_files_are_not_sent_again(open_server: Server) -> None:
    for path in ("/", "/page.js", "/api/v1/datasets", "/api/v1/none"):
        headers = ask(open_server, "GET", path).headers
        policy = dict(each.strip().split(" ", 1) for each in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == ("no-store" if path.startswith("/api") else "no-cache")
    for path, kind in [("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css"), ("/icon.svg", "image/svg+xml")]:
        answer = ask(open_server, "GET", path)
        assert answer.headers.get_content_type() == kind and answer.body
        again = ask(open_server, "GET", path, if_none_match=answer.headers["etag"])
        assert again.status == 304 and not again.body


def test_a_restricted_token_sees_only_its_own_datasets_queues_and_events(locked: Server) -> None:
    assert tune(locked, {"max_attempts": 3}, "admin").status == 200
    assert tune(locked, {"max_attempts": 2}, "admin").status == 200

    def names(token: str) -> tuple[list[str], list[str], set[str | None], set[str]]:
        datasets, queues = get(locked, "/api/v1/datasets", token), get(locked, "/api/v1/queues", token)
        events = get(locked, "/api/v1/events", token)["events"]
        return (
            [dataset["name"] for dataset in datasets["datasets"]],
            [queue["name"] for queue in queues["queues"]],
            {event["dataset"] for event in events},
            {event["kind"] for event in events},
        )

    datasets, queues, about, kinds = names("users")
    assert datasets == ["users"] and queues == [] and about == {"users"} and "queue_settings_changed" not in kinds
    datasets, queues, about, kinds = names("all")
    assert datasets == ["items", "payments", "users"] and queues == ["ranker"]
    assert about == {"items", "payments", "users", None} and {"dataset_open", "queue_settings_changed"} <= kinds
    with Listener(locked, "users", last_event_id="0") as restricted, Listener(locked, "all") as unrestricted:
        messages = restricted.messages()
        state = next(messages).data
        assert [dataset["name"] for dataset in state["datasets"]["datasets"]] == ["users"]
        assert state["queues"]["queues"] == []
        seen = [next(messages) for _ in range(4)]
        assert {message.data["dataset"] for message in seen if message.kind == "event"} == {"users"}
        state = next(unrestricted.of("state")).data
        assert len(state["datasets"]["datasets"]) == 3 and len(state["queues"]["queues"]) == 1


def without_openings(messages: Iterable[Message]) -> Iterator[Message]:
    """Returns the events without `dataset_open`, which is recorded a moment after the dataset is open."""
    return (message for message in messages if message.kind == "event" and message.data["kind"] != "dataset_open")


def tuning(listener: Listener) -> Message:
    """Returns the next event `queue_settings_changed`."""
    return next(message for message in listener.of("event") if message.data["kind"] == "queue_settings_changed")


def test_the_state_is_sent_at_once_and_every_second_and_events_when_they_occur(locked: Server) -> None:
    def seconds_to_first_state() -> float:
        began = time.monotonic()
        with Listener(locked, "all") as listener:
            return next(listener.of("state")).at - began

    # The least of several times, because any one of them may be late on a busy machine.
    assert min(seconds_to_first_state() for _ in range(5)) < 0.5, "the first state is sent at once"
    with Listener(locked, "all") as listener:
        states = listener.of("state")
        for _ in range(3):
            times = [next(states).at for _ in range(6)]
            gaps = [after - before for before, after in zip(times[1:], times[2:])]
            if 0.5 < statistics.median(gaps) < 2:
                break
        assert 0.5 < statistics.median(gaps) < 2, gaps
        delays = []
        for max_batch_delay in ("6ms", "5ms", "7ms"):
            # Directly after a state: the event arrives long before the next state.
            next(states)
            noted = time.monotonic()
            assert tune(locked, {"max_batch_delay": max_batch_delay}, "admin").status == 200
            message = tuning(listener)
            delays.append(message.at - noted)
        assert min(delays) < 0.5, delays
        assert message.data["queue"] == "ranker"
        assert "max_batch_delay: 7ms, before 5ms" in message.data["message"] and "'admin'" in message.data["message"]
        assert message.id == message.data["id"] <= next(states).id
    assert tune(locked, {"max_batch_delay": "5ms"}, "admin").status == 200
    # A listener that reconnects receives the events that it missed, once.
    with Listener(locked, "all", last_event_id=str(message.id)) as listener:
        missed = tuning(listener)
        assert missed.id > message.id and "before 7ms" in missed.data["message"]


def test_events_are_read_page_by_page(locked: Server) -> None:
    every = [event["id"] for event in get(locked, "/api/v1/events", "all")["events"]]
    assert every == sorted(every) and len(every) >= 3
    last = get(locked, "/api/v1/events?limit=2", "all")["events"]
    assert len(last) == 2 and last[-1]["id"] >= every[-1], "the newest events"
    following = get(locked, f"/api/v1/events?limit=1&after={every[0]}", "all")["events"]
    assert [event["id"] for event in following] == every[1:2]
    later = get(locked, f"/api/v1/events?after={every[-1]}", "all")["events"]
    assert all(event["id"] > every[-1] for event in later)


def test_the_57th_subscriber_of_a_caller_is_rejected_until_another_one_disconnects(open_server: Server) -> None:
    listeners = [Listener(open_server) for _ in range(56)]
    assert {listener.status for listener in listeners} == {200}
    refused = ask(open_server, "GET", "/api/v1/live")
    assert refused.status == 429 and "limits.max_live_subscribers is 64" in refused.error
    assert [next(listener.of("state")).kind for listener in listeners] == ["state"] * 56
    listeners.pop().close()
    until(lambda: ask(open_server, "GET", "/api/v1/live").status == 200)
    for listener in listeners:
        listener.close()


def test_a_listener_receives_the_drain_event_and_its_stream_ends(pool: Pool, tmp_path: Path) -> None:
    server = start(pool, tmp_path)
    with Listener(server) as listener:
        messages = listener.messages()
        next(messages)
        server.terminate()
        assert [message.data["kind"] for message in without_openings(messages)] == ["draining"]
    assert server.wait() == 0


def test_the_stream_of_a_listener_ends_when_its_token_is_revoked(pool: Pool, tmp_path: Path) -> None:
    write_tokens(tmp_path / "tokens.toml", TOKENS)
    server = start(pool, tmp_path, tokens=tmp_path / "tokens.toml")
    with Listener(server, "all") as listener, Listener(server, "admin") as other:
        next(listener.messages())
        replace(tmp_path / "tokens.toml", "[a]\nsha256 = 'short'\ndatasets = ['*']\n")
        failed = next(without_openings(other.messages())).data
        assert failed["kind"] == "reload_failed" and failed["severity"] == "error" and "token 'a'" in failed["message"]
        write_tokens(tmp_path / "tokens.toml", {"admin": TOKENS["admin"]})
        for _ in listener.messages():
            pass  # The stream ends.


def test_changes_of_datasets_and_workers_are_recorded_as_events(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "growing").mkdir()
    table = pa.table({"a": np.arange(100)})
    pq.write_table(table, tmp_path / "growing" / "0.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"no parquet")
    (tmp_path / "forebay.toml").write_text(QUEUES)
    datasets = {**write_features(tmp_path), "growing": tmp_path / "growing", "broken": tmp_path / "broken.parquet"}
    server = pool.start(datasets, config=tmp_path / "forebay.toml")

    def events(**of: str) -> list[dict[str, Any]]:
        every = get(server, "/api/v1/events")["events"]
        return [event for event in every if all(event[name] == value for name, value in of.items())]

    until(lambda: bool(events(dataset="broken") and events(dataset="growing")))
    (failed,) = events(dataset="broken")
    assert failed["kind"] == "dataset_failed" and failed["severity"] == "error" and "broken.parquet" in failed["message"]
    (opened,) = events(dataset="growing")
    assert opened["kind"] == "dataset_open" and "files: 1, rows: 100" in opened["message"]
    pq.write_table(table, tmp_path / "growing" / "1.parquet")
    with Client(server.location) as client:
        client.refresh("growing")
        client.refresh("growing")
    (_, changed) = events(dataset="growing")
    assert changed["kind"] == "dataset_changed" and changed["timestamp"] >= opened["timestamp"]
    assert "files: 2, rows: 200" in changed["message"] and "before files: 1, rows: 100" in changed["message"]

    worker = flight.connect(server.location)
    writer, reader = worker.do_exchange(flight.FlightDescriptor.for_command(b'{"worker": {"queue": "ranker"}}'))
    # pyarrow sends the descriptor of the exchange with the first message.
    writer.begin(pa.schema([("score", pa.float32())]))
    until(lambda: len(events(kind="worker_joined", queue="ranker")) == 1)
    writer.done_writing()
    reader.cancel()
    worker.close()
    until(lambda: len(events(kind="worker_left", queue="ranker")) == 1)
    # Each event is logged once and counted.
    log = server.log()
    assert log.count("dataset_failed") == 1 and log.count("worker_left") == 1
    metrics = ask(server, "GET", "/metrics").body.decode()
    assert 'forebay_events_total{kind="dataset_changed"} 1' in metrics


def test_requests_are_counted_by_route_template(open_server: Server) -> None:
    get(open_server, "/api/v1/queues/ranker")
    ask(open_server, "GET", "/api/v1/queues/no-such-queue")
    ask(open_server, "GET", "/some/path?secret")
    text = ask(open_server, "GET", "/metrics").body.decode()
    counted = [line for line in text.splitlines() if line.startswith("forebay_http_requests_total")]
    for labels in ('route="/api/v1/queues/{name}",code="200"', 'route="/api/v1/queues/{name}",code="404"', 'route="other",code="404"'):
        assert any(labels in line for line in counted), counted
    assert "no-such-queue" not in text and "/some" not in text and "secret" not in text
    assert 'forebay_http_request_duration_seconds_bucket{route="/metrics"' in ask(open_server, "GET", "/metrics").body.decode()


def test_a_throughput_latency_curve_has_a_forecast_per_batch_size(locked: Server, open_server: Server) -> None:
    idle = get(locked, "/api/v1/queues/ranker/throughput-latency", "all")
    assert idle["name"] == "ranker" and idle["points"] == [] and idle["current"]["forecast"] is None
    assert idle["current"]["max_batch_rows"] == 1000 and idle["default_timeout_seconds"] == 0.1
    assert ask(open_server, "GET", "/api/v1/queues/nothing/throughput-latency").status == 404
