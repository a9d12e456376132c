"""Servers of one cluster on loopback ports: views, lists, failures, locations, tokens, and the bound of a hot dataset."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterator

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest
import trustme

from api import ask, get
from client import Client, Plan, command, refused
from digest import digest_of
from metrics import scrape
from ports import free_port
from server import Pool, Server, StartError, replace, until
from test_auth import token_file, write_certificate

ROWS = 20_000
REUSE = b"arrow-flight-reuse-connection://?"
DO_GET = "/arrow.flight.protocol.FlightService/DoGet"
TRAIN = dict(dataset="rows", batch_size=500, seed=7)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20,000 rows in 20 row groups."""
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    table = pa.table({"id": np.arange(ROWS), "value": np.random.default_rng(1).normal(size=ROWS)})
    pq.write_table(table, path, row_group_size=1000)
    return path


@dataclass
class Cluster:
    """Servers with one state and one file of members. Their names are their addresses."""

    pool: Pool
    rows: Path
    folder: Path
    ports: list[int] = field(default_factory=list)
    servers: dict[int, Server] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.folder / "members"

    def name(self, number: int) -> str:
        return f"127.0.0.1:{self.ports[number]}"

    def reserve(self, count: int) -> None:
        self.ports += [free_port() for _ in range(count - len(self.ports))]

    def list(self, *numbers: int) -> None:
        replace(self.file, "".join(f"{self.name(number)}\n" for number in numbers))

    def start(self, number: int, *, members: str = "", config: str = "", limits: str = "", **flags: Any) -> Server:
        """Starts server `number`. `limits` are further lines of `[membership]`, `config` is for the top level."""
        self.reserve(number + 1)
        settings = self.folder / f"forebay-{number}.toml"
        # With a long `hello_timeout`, only servers that have ended count as silent, and none that is slow.
        intervals = 'poll_interval = "50ms"\nhello_interval = "100ms"\nmax_hello_backoff = "1s"\nhello_timeout = "30s"'
        settings.write_text(f"{config}\n[membership]\n{intervals}\n{limits}\n")
        flags = {"state": self.folder / "state", "advertise": self.name(number), **flags}
        server = self.pool.start(
            {"rows": self.rows},
            cache_dir=self.folder / f"cache-{number}",
            grpc=self.name(number),
            members=members or f"file:{self.file}",
            config=settings,
            **flags,
        )
        self.servers[number] = server
        return server

    def start_all(self, count: int, **options: Any) -> list[Server]:
        self.reserve(count)
        self.list(*range(count))
        servers = [self.start(number, **options) for number in range(count)]
        self.agree(*range(count))
        return servers

    def states(self, number: int, token: str | None = None) -> dict[str, str]:
        """Returns the members and their states, as server `number` sees them."""
        members = get(self.servers[number], "/api/v1/members", token)["members"]
        return {member["name"]: member["state"] for member in members}

    def until_seen(self, by: int, expected: dict[int, str], seconds: float = 60) -> None:
        wanted = {self.name(number): state for number, state in expected.items()}
        until(
            lambda: self.states(by) == wanted,
            seconds,
            lambda: f"server {by} sees {get(self.servers[by], '/api/v1/members')}, expected {wanted}",
        )

    def agree(self, *numbers: int) -> None:
        for by in numbers:
            self.until_seen(by, dict.fromkeys(numbers, "ready"))

    def events(self, number: int, kind: str) -> list[str]:
        events = get(self.servers[number], "/api/v1/events")["events"]
        return [event["message"] for event in events if event["kind"] == kind]


@pytest.fixture
def cluster(pool: Pool, rows: Path, tmp_path: Path) -> Cluster:
    return Cluster(pool, rows, tmp_path)


def locations(plan: Plan) -> list[list[bytes]]:
    return [[location.uri for location in endpoint.locations] for endpoint in plan.info.endpoints]


def plan_of(server: Server, headers: list[tuple[bytes, bytes]] = [], **train: Any) -> list[list[bytes]]:
    with Client(server.location) as client:
        descriptor = flight.FlightDescriptor.for_command(command(**{**TRAIN, **train}))
        info = client.flight.get_flight_info(descriptor, flight.FlightCallOptions(headers=headers))
        return locations(Plan(info, 1, 1))


def test_all_servers_see_the_same_members_and_give_the_same_locations(cluster: Cluster) -> None:
    servers = cluster.start_all(4)
    seen = [get(server, "/api/v1/members")["members"] for server in servers]
    for number, members in enumerate(seen):
        assert [member["name"] for member in members if member["this_server"]] == [cluster.name(number)]
        assert [member["name"] for member in members] == sorted(map(cluster.name, range(4)))
        assert all(member["listed"] and member["version"] for member in members)
    found = [plan_of(server, world_size=4, lanes=2) for server in servers]
    assert all(one == found[0] for one in found)
    for uris in found[0]:
        assert len(uris) == 4 and uris[-1] == REUSE, uris
        assert len(set(uris)) == 4 and all(uri.startswith(b"grpc://127.0.0.1:") for uri in uris[:3]), uris
    ranks = [found[0][2 * rank : 2 * rank + 2] for rank in range(4)]
    assert all(first == second for first, second in ranks), "the lanes of a rank have the same locations"
    assert scrape(servers[0]).value("forebay_members", state="ready") == 4


def test_a_client_that_follows_locations_and_one_that_does_not_get_the_same_bytes(cluster: Cluster) -> None:
    servers = cluster.start_all(3)
    with Client(servers[0].location) as client:
        expected = client.digest(**TRAIN)
        info = client.plan(**TRAIN).info
        for endpoint in info.endpoints:
            for location in endpoint.locations[:3]:
                with Client(location.uri.decode()) as followed:
                    assert digest_of(batch.data for batch in followed.read(endpoint.ticket)) == expected
    def placed(candidate: str) -> float:
        values = (scrape(server).value("forebay_streams_placed_total", candidate=candidate) for server in servers)
        return sum(values)

    # One stream of the digest, and one of each location.
    until(lambda: placed("first") + placed("other") == 4)
    assert placed("first") >= 1 and placed("other") >= 2


def test_a_file_of_members_is_followed(cluster: Cluster) -> None:
    delays = 'removal_delay = "300ms"\nunlisted_timeout = "1s"'
    cluster.start_all(2, limits=delays)
    cluster.start(2, limits=delays)
    cluster.until_seen(0, {0: "ready", 1: "ready"})
    cluster.list(0, 1, 2)
    cluster.agree(0, 1, 2)
    assert any(cluster.name(2) in message for message in cluster.events(0, "member_joined"))
    # One of three is less than half, so the list is adopted at once.
    cluster.list(0, 1)
    cluster.agree(0, 1)
    assert any(cluster.name(2) in message for message in cluster.events(0, "member_left"))
    cluster.list(0, 1, 2)
    cluster.agree(0, 1, 2)


def test_a_list_that_halves_is_held_back_and_one_that_empties_is_an_error(cluster: Cluster) -> None:
    servers = cluster.start_all(4, limits='removal_delay = "50ms"\nunlisted_timeout = "50ms"')

    def held(server: Server) -> bool:
        return get(server, "/api/v1/members")["held"] is not None

    cluster.list(0)
    until(lambda: all(map(held, servers)))
    reads = scrape(servers[0]).value("forebay_hello_errors_total")
    answer = get(servers[0], "/api/v1/members")
    assert answer["held"]["of"] == 4 and answer["held"]["lost"] == 3
    assert 0 < answer["held"]["adopted_in_seconds"] <= 60
    assert cluster.states(0) == dict.fromkeys(map(cluster.name, range(4)), "ready")
    assert scrape(servers[0]).value("forebay_hello_errors_total") == reads
    cluster.list(0, 1, 2, 3)
    until(lambda: not any(map(held, servers)))
    assert cluster.events(0, "member_left") == []
    assert len(cluster.events(0, "member_list_held")) == 1
    # A list that is empty, malformed or can't be read holds the last one, too.
    for text, reason in [("", "has no address"), ("127.0.0.1:1\nnot an address\n", "line 2"), (None, "can't open the file")]:
        cluster.file.unlink() if text is None else replace(cluster.file, text)
        until(lambda: reason in (get(servers[0], "/api/v1/members")["list_error"] or ""))
        assert cluster.states(0) == dict.fromkeys(map(cluster.name, range(4)), "ready")
    assert scrape(servers[0]).value("forebay_member_list_errors_total") >= 2


def test_a_short_list_that_lasts_is_adopted(cluster: Cluster) -> None:
    cluster.start_all(3, limits='shrink_delay = "300ms"\nremoval_delay = "50ms"\nunlisted_timeout = "50ms"')
    cluster.list(0)
    cluster.until_seen(0, {0: "ready"})
    assert cluster.events(0, "member_list_adopted")


def test_a_server_of_another_state_is_refused_with_words(cluster: Cluster) -> None:
    cluster.reserve(3)
    cluster.list(0, 1, 2)
    for number in range(2):
        cluster.start(number)
    stranger = cluster.start(2, state=cluster.folder / "other-state")
    cluster.agree(0, 1)
    cluster.until_seen(2, {2: "ready"})

    def reasons(number: int) -> dict[str, str]:
        others = get(cluster.servers[number], "/api/v1/members")["others"]
        return {other["address"]: other["reason"] or "" for other in others if other["refused"]}

    until(lambda: cluster.name(2) in reasons(0) and len(reasons(2)) == 2)
    assert "its state has the id" in reasons(0)[cluster.name(2)]
    assert any(cluster.name(2) in message and "state" in message for message in cluster.events(0, "member_refused"))
    assert scrape(cluster.servers[0]).value("forebay_members", state="refused") == 1
    for server, count in [(cluster.servers[0], 2), (stranger, 1)]:
        for uris in plan_of(server, world_size=4):
            assert len(uris) == count + 1, uris


def test_a_server_that_is_not_reached_at_its_name_is_not_ready_and_gets_no_streams(cluster: Cluster) -> None:
    cluster.reserve(3)
    cluster.list(0, 1, 2)
    cluster.start(0)
    wrong = {1: (f"127.0.0.1:{free_port()}", "no call reaches it there"), 2: (cluster.name(0), "another server answers there")}
    for number, (name, reason) in wrong.items():
        server = cluster.start(number, advertise=name, becomes_ready=False)
        until(lambda: any(reason in message for message in cluster.events(number, "member_refused")))
        answer = ask(server, "GET", "/readyz")
        assert (answer.status, answer.json["ready"], answer.json["reachable"]) == (503, False, False)
        others = lambda: {other["address"]: json.dumps(other) for other in get(cluster.servers[0], "/api/v1/members")["others"]}
        until(lambda: reason in others().get(cluster.name(number), ""), failure=lambda: str(others()))
    assert ask(cluster.servers[0], "GET", "/readyz").status == 200
    assert cluster.states(0) == {cluster.name(0): "ready"}
    for uris in plan_of(cluster.servers[0], world_size=4):
        assert uris == [f"grpc://{cluster.name(0)}".encode(), REUSE]


def test_a_killed_server_stays_a_member_and_returns_to_its_streams(cluster: Cluster) -> None:
    cluster.start_all(3)
    before = plan_of(cluster.servers[0], world_size=4)
    cluster.servers[2].kill()
    cluster.until_seen(0, {0: "ready", 1: "ready", 2: "silent"})
    assert plan_of(cluster.servers[0], world_size=4) == before, "its streams use their next location until it returns"
    cluster.start(2)
    cluster.agree(0, 1, 2)
    assert all(plan_of(server, world_size=4) == before for server in cluster.servers.values())


def test_a_draining_server_says_so_and_gets_no_new_streams(cluster: Cluster) -> None:
    servers = cluster.start_all(3)
    with Client(servers[2].location) as client:
        stream = client.batches(**TRAIN, epochs=1000)
        next(stream)
        servers[2].terminate()
        for by in (0, 1):
            cluster.until_seen(by, {0: "ready", 1: "ready", 2: "draining"})
        gone = f"grpc://{cluster.name(2)}".encode()
        for server in servers[:2]:
            for uris in plan_of(server, world_size=4):
                assert len(uris) == 3 and gone not in uris, uris
        assert next(stream).data.num_rows == 500, "running streams continue"
        with refused("UNAVAILABLE", "stopping"):
            client.refresh("rows")
        hello = client.action("hello", {})[0]
        assert hello["draining"] is True and hello["name"] == cluster.name(2)
        stream.close()
    assert servers[2].wait() == 0
    assert any("draining" in message for message in cluster.events(0, "member_draining"))


def test_a_server_that_restarts_while_the_list_is_missing_knows_its_members(cluster: Cluster) -> None:
    cluster.start_all(3)
    cluster.file.unlink()
    assert cluster.servers[1].stop() == 0
    cluster.start(1)
    cluster.agree(0, 1, 2)
    assert "can't open the file" in get(cluster.servers[1], "/api/v1/members")["list_error"]


def test_a_fixed_list_and_a_name_are_sources(cluster: Cluster) -> None:
    cluster.reserve(3)
    names = ",".join(map(cluster.name, range(3)))
    cluster.start(0, members=names)
    cluster.start(1, members=f"dns:localhost:{cluster.ports[0]},{names}")
    cluster.start(2, members=f"dns:localhost:{cluster.ports[0]}, dns:localhost:{cluster.ports[1]}")
    cluster.agree(0, 1, 2)


def test_a_zone_limits_the_locations(cluster: Cluster) -> None:
    cluster.reserve(4)
    cluster.list(0, 1, 2, 3)
    for number in range(4):
        cluster.start(number, zone="a" if number < 2 else "b")
    cluster.agree(0, 1, 2, 3)
    in_zone = {f"grpc://{cluster.name(number)}".encode() for number in (2, 3)}
    for server in cluster.servers.values():
        for uris in plan_of(server, [(b"forebay-zone", b"b")], world_size=4):
            assert set(uris[:-1]) == in_zone and uris[-1] == REUSE
        assert len(plan_of(server, [(b"forebay-zone", b"unknown")])[0]) == 4
    with refused("INVALID_ARGUMENT", "forebay-zone"):
        plan_of(cluster.servers[0], [(b"forebay-zone", b"not a zone")])


@pytest.fixture
def open_stream() -> Iterator[Callable[..., Any]]:
    """Opens DoGet with headers through gRPC, and returns the call after its first message."""
    channels: list[grpc.Channel] = []

    def opened(server: Server, *headers: tuple[str, str], **train: Any) -> Any:
        channels.append(grpc.insecure_channel(server.grpc))
        call = channels[-1].unary_stream(DO_GET)
        ticket = command(**{**TRAIN, "epochs": 1000, **train})
        size = len(ticket)
        message = b"\x0a" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + ticket
        answer = call(message, metadata=headers)
        next(answer)
        return answer

    yield opened
    for channel in channels:
        channel.close()


def test_a_loaded_server_sends_streams_on_and_the_last_one_serves(
    cluster: Cluster, open_stream: Callable[..., Any], pool: Pool, rows: Path
) -> None:
    loaded, _ = cluster.start_all(2, limits="overflow_streams = 1")
    first = open_stream(loaded, ("forebay-candidate", "0"))
    with pytest.raises(grpc.RpcError) as caught:
        open_stream(loaded, ("forebay-candidate", "0"))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    trailers = dict(caught.value.initial_metadata() or ()) | dict(caught.value.trailing_metadata() or ())
    assert trailers["forebay-next"] == "1"
    assert "membership.overflow_streams is 1" in caught.value.details()
    assert scrape(loaded).value("forebay_streams_redirected_total") == 1
    # The last server of a list serves, and so does any server for a client without a list.
    others = [open_stream(loaded, ("forebay-candidate", "last")), open_stream(loaded)]
    with pytest.raises(grpc.RpcError) as caught:
        open_stream(loaded, ("forebay-candidate", "first"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT and "forebay-candidate" in caught.value.details()
    for call in [first, *others]:
        call.cancel()
    until(lambda: scrape(loaded).value("forebay_streams") == 0)
    open_stream(loaded, ("forebay-candidate", "0")).cancel()
    # A server without other members serves everything.
    cluster.servers[1].kill()
    cluster.until_seen(0, {0: "ready", 1: "silent"})
    calls = [open_stream(loaded, ("forebay-candidate", "0")) for _ in range(3)]
    assert scrape(loaded).value("forebay_streams_redirected_total") == 1
    for call in calls:
        call.cancel()


def test_a_server_without_members_gives_no_locations_and_serves_everything(
    pool: Pool, rows: Path, tmp_path: Path, open_stream: Callable[..., Any]
) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text("[membership]\noverflow_streams = 1\n")
    server = pool.start({"rows": rows}, config=config)
    assert plan_of(server, world_size=2) == [[], []]
    assert ask(server, "GET", "/api/v1/members").status == 404
    calls = [open_stream(server, ("forebay-candidate", "0")) for _ in range(3)]
    for call in calls:
        call.cancel()
    with Client(server.location) as client, refused("FAILED_PRECONDITION", "--advertise"):
        client.action("hello", {})


def test_members_authenticate_with_certificates(cluster: Cluster, tmp_path: Path) -> None:
    authority = trustme.CA()
    write_certificate(authority, tmp_path)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    authority.issue_cert("trainer@example.com").configure_cert(context)
    cluster.reserve(2)
    cluster.list(0, 1)
    for number in range(2):
        cluster.start(
            number,
            tls=context,
            tls_certificate=tmp_path / "certificate.pem",
            tls_key=tmp_path / "key.pem",
            tls_client_ca=tmp_path / "ca.pem",
            membership_ca=tmp_path / "ca.pem",
        )

    def ready(number: int) -> int:
        members = json.loads(cluster.servers[number].http_get("/api/v1/members")[1])["members"]
        return sum(member["state"] == "ready" for member in members)

    until(lambda: ready(0) == ready(1) == 2)


def test_members_authenticate_with_tokens_and_tls(cluster: Cluster, tmp_path: Path) -> None:
    authority = trustme.CA()
    write_certificate(authority, tmp_path)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    tokens = token_file(tmp_path / "tokens.toml", member=(["no-dataset"], None), all=(["*"], None))
    replace(tokens, tokens.read_text().replace("[member]", '[member]\nactions = ["hello"]'))
    good, bad = tmp_path / "token", tmp_path / "bad-token"
    good.write_text("token-of-member\n")
    bad.write_text("token-of-stranger\n")
    cluster.reserve(3)
    cluster.list(0, 1, 2)
    for number in range(3):
        cluster.start(
            number,
            tls=context,
            tls_certificate=tmp_path / "certificate.pem",
            tls_key=tmp_path / "key.pem",
            tokens=tokens,
            membership_ca=tmp_path / "ca.pem",
            membership_token=bad if number == 2 else good,
        )

    def shown(number: int) -> dict[str, Any]:
        header = {"authorization": "Bearer token-of-all"}
        status, body = cluster.servers[number].http_get("/api/v1/members", **header)
        assert status == 200, body
        return json.loads(body)

    def names(number: int) -> set[str]:
        return {member["name"] for member in shown(number)["members"] if member["state"] == "ready"}

    everyone = set(map(cluster.name, range(3)))
    until(lambda: names(0) == everyone and names(1) == everyone)

    def rejecting(number: int) -> set[str]:
        others = shown(number)["others"]
        return {other["address"] for other in others if "UNAUTHENTICATED" in (other["reason"] or "")}

    # Its own address is among them: it calls itself with the same token.
    until(lambda: rejecting(2) == everyone)
    assert names(2) == {cluster.name(2)}
    # The token is read again.
    replace(bad, "token-of-member")
    until(lambda: names(2) == everyone)
    assert cluster.servers[0].http_get("/api/v1/members")[0] == 401
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer token-of-all")])
    with flight.connect(cluster.servers[0].location, tls_root_certs=authority.cert_pem.bytes()) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_command(command(**TRAIN)), options)
        uris = [location.uri for location in info.endpoints[0].locations]
        assert all(uri.startswith(b"grpc+tls://") for uri in uris[:3]) and uris[3] == REUSE, uris
    for server in cluster.servers.values():
        assert "token-of-" not in server.log()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (dict(members="a:1"), ("--members", "--advertise HOST:PORT")),
        (dict(members="a", advertise="a:1"), ("--members", "'a'", "expected HOST:PORT")),
        (dict(members="grpc://a:1", advertise="a:1"), ("without grpc://",)),
        (dict(advertise="0.0.0.0:1"), ("--advertise 0.0.0.0:1", "other machines")),
        (dict(zone="a b"), ("--zone", "'a b'")),
        (dict(members="a:1", advertise="a:1", membership_token="/nowhere/token"), ("--membership-token", "/nowhere/token")),
    ],
)
def test_malformed_settings_of_a_member_are_rejected_before_a_port_is_bound(
    pool: Pool, rows: Path, flags: dict[str, str], words: tuple[str, ...]
) -> None:
    with pytest.raises(StartError) as caught:
        pool.start({"rows": rows}, **flags)
    assert caught.value.exit_status == 1
    for word in words:
        assert word in caught.value.log, caught.value.log
