"""Authentication and authorization of every method of Flight and HTTP, for each kind of token."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import pyarrow.flight as flight
import pytest
import trustme

from client import FAILURES, command, status_of
from online import Online, refused as online_refused
from server import ROOT, Pool, Server, StartError, forebay, replace, until

# The methods of the service that the Flight standard defines.
FLIGHT = """Handshake ListFlights GetFlightInfo PollFlightInfo GetSchema DoGet DoPut DoExchange DoAction ListActions""".split()
LOOKUP = b'{"lookup": {"dataset": "flights", "keys": [{"name": "id", "integers": [1]}]}}'
GET = command(dataset="flights", batch_size=4096, steps=1)
UNSERVED = "UNIMPLEMENTED"


def token_file(path: Path, **tokens: tuple[list[str], str | None]) -> Path:
    """Writes a token file from datasets and expiry by name. The token of a name is `token-of-NAME`."""
    text = ""
    for name, (datasets, expires) in tokens.items():
        digest = hashlib.sha256(f"token-of-{name}".encode()).hexdigest()
        text += f'[{name}]\nsha256 = "{digest}"\ndatasets = {json.dumps(datasets)}\n'
        text += f"expires = {expires}\n" if expires else ""
    return replace(path, text)


@dataclass
class Locked:
    """A server that requires TLS and tokens, with its CA and token file."""

    server: Server
    authority: trustme.CA
    tokens: Path
    folder: Path

    def connect(self, **options: Any) -> flight.FlightClient:
        roots = self.authority.cert_pem.bytes()
        return flight.connect(self.server.location, tls_root_certs=roots, **options)


def write_certificate(authority: trustme.CA, folder: Path) -> None:
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "certificate.pem")


def start(pool: Pool, flights: Path, folder: Path, **flags: object) -> Locked:
    authority = trustme.CA()
    write_certificate(authority, folder)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    tokens = token_file(
        folder / "tokens.toml",
        right=(["fli*"], None),
        other=(["payments"], None),
        all=(["*"], "2999-01-01T00:00:00Z"),
        old=(["*"], "2020-01-01T00:00:00Z"),
    )
    config = folder / "forebay.toml"
    config.write_text('credentials_reload_interval = "100ms"\n')
    server = pool.start(
        {"flights": flights, "payments": flights},
        tls_certificate=folder / "certificate.pem",
        tls_key=folder / "key.pem",
        tokens=tokens,
        config=config,
        tls=context,
        **flags,
    )
    return Locked(server, authority, tokens, folder)


@pytest.fixture(scope="module")
def locked(flights: Path, module_pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Locked:
    return start(module_pool, flights, tmp_path_factory.mktemp("auth"))


def options_of(name: str | None) -> flight.FlightCallOptions:
    headers = [(b"authorization", f"Bearer token-of-{name}".encode())] if name else []
    return flight.FlightCallOptions(headers=headers)


def act(kind: str, body: bytes) -> Callable[[flight.FlightClient, flight.FlightCallOptions], object]:
    return lambda client, options: list(client.do_action(flight.Action(kind, body), options))


def put(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    import pyarrow as pa

    writer, _ = client.do_put(flight.FlightDescriptor.for_path("flights"), pa.schema([("a", pa.int64())]), options)
    writer.close()


def put_values(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    import pyarrow as pa

    announced = flight.FlightDescriptor.for_command(b'{"sha256": "00", "bytes": 7}')
    writer, _ = client.do_put(announced, pa.schema([]), options)
    writer.close()


def exchange(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    lookup = b'{"lookup": {"dataset": "flights"}}'
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(lookup), options)
    writer.done_writing()
    reader.read_all()


DATASET = flight.FlightDescriptor.for_path("flights")
CURRENT = b'{"dataset": "flights"}'
ALLOWED, DENIED = "OK", "PERMISSION_DENIED"

# Status of a call of each method with a token for this dataset, for another one, and for all.
METHODS: dict[str, tuple[Callable[..., object], tuple[str, str, str]]] = {
    "GetFlightInfo command": (
        lambda client, options: client.get_flight_info(flight.FlightDescriptor.for_command(GET), options),
        (ALLOWED, DENIED, ALLOWED),
    ),
    "GetFlightInfo path": (
        lambda client, options: client.get_flight_info(DATASET, options),
        (ALLOWED, DENIED, ALLOWED),
    ),
    "GetSchema command": (
        lambda client, options: client.get_schema(flight.FlightDescriptor.for_command(GET), options),
        (ALLOWED, DENIED, ALLOWED),
    ),
    "GetSchema path": (lambda client, options: client.get_schema(DATASET, options), (ALLOWED, DENIED, ALLOWED)),
    "DoGet": (
        lambda client, options: client.do_get(flight.Ticket(GET), options).read_all(),
        (ALLOWED, DENIED, ALLOWED),
    ),
    # The token is authorized, but the dataset is not online.
    "DoGet lookup": (
        lambda client, options: client.do_get(flight.Ticket(LOOKUP), options).read_all(),
        ("FAILED_PRECONDITION", DENIED, "FAILED_PRECONDITION"),
    ),
    "ListFlights": (lambda client, options: list(client.list_flights(b"", options)), (ALLOWED,) * 3),
    "ListActions": (lambda client, options: list(client.list_actions(options)), (ALLOWED,) * 3),
    "DoAction refresh": (act("refresh", CURRENT), (ALLOWED, DENIED, ALLOWED)),
    "DoAction warm": (act("warm", GET), (ALLOWED, DENIED, ALLOWED)),
    "DoAction count-rows": (act("count-rows", GET), (ALLOWED, DENIED, ALLOWED)),
    "DoAction pin": (act("pin", GET), (ALLOWED, DENIED, ALLOWED)),
    "DoAction unpin": (act("unpin", GET), (ALLOWED, DENIED, ALLOWED)),
    "DoAction drop-cache": (act("drop-cache", CURRENT), (ALLOWED, DENIED, ALLOWED)),
    "DoAction drop-cache of everything": (act("drop-cache", b"{}"), (DENIED, DENIED, ALLOWED)),
    "DoAction hello": (act("hello", b"{}"), ("FAILED_PRECONDITION",) * 3),
    "DoAction report": (act("report", b'{"dataset": "flights", "trainer": 1}'), (ALLOWED, DENIED, ALLOWED)),
    # These tokens are not administrators.
    "DoAction pin-lookups": (act("pin-lookups", CURRENT), (DENIED,) * 3),
    # Only over a Unix socket, by a process of the user that runs the server.
    "DoAction open": (act("open", b'{"url": "/data"}'), (DENIED,) * 3),
    "DoPut": (put, (UNSERVED,) * 3),
    # The token is authorized, but the set of values has another size.
    "DoPut of values": (put_values, ("INVALID_ARGUMENT",) * 3),
    "DoExchange": (exchange, ("FAILED_PRECONDITION", DENIED, "FAILED_PRECONDITION")),
}


# Methods of Flight that pyarrow does not call; see test_every_method_of_every_service_requires_a_token.
UNCALLED = {"Handshake", "PollFlightInfo"}


def test_the_table_of_methods_is_complete(locked: Locked) -> None:
    named = {name.split()[0] for name in METHODS}
    assert named | UNCALLED == set(FLIGHT)
    with locked.connect() as client:
        actions = {f"DoAction {action.type}" for action in client.list_actions(options_of("all"))}
    assert actions <= set(METHODS)


def outcome(call: Callable[..., object], client: flight.FlightClient, name: str | None) -> str:
    try:
        call(client, options_of(name))
    except FAILURES as error:
        return status_of(error)
    except NotImplementedError:
        return UNSERVED
    return ALLOWED


@pytest.mark.parametrize("method", METHODS)
def test_every_flight_method_requires_a_token(locked: Locked, method: str) -> None:
    call, (right, other, everything) = METHODS[method]
    expected = {
        None: "UNAUTHENTICATED",
        "unknown": "UNAUTHENTICATED",
        "old": "UNAUTHENTICATED",
        "other": other,
        "all": everything,
        "right": right,
    }
    with locked.connect() as client:
        found = {name: outcome(call, client, name) for name in expected}
    assert found == expected


def test_lookups_without_arrow_require_a_token(locked: Locked) -> None:
    expected = {None: "UNAUTHENTICATED", "unknown": "UNAUTHENTICATED", "old": "UNAUTHENTICATED", "other": DENIED}
    # The token is authorized, but the dataset is not online.
    expected |= {"right": "FAILED_PRECONDITION", "all": "FAILED_PRECONDITION"}
    keys = [{"name": "id", "integers": [1]}]
    with Online(locked.server.grpc, locked.authority.cert_pem.bytes()) as online:
        for name, status in expected.items():
            with online_refused(status):
                online(f"token-of-{name}" if name else None, dataset="flights", keys=keys)
        with online_refused(DENIED, "payments"):
            online("token-of-right", dataset="flights", keys=keys, joins=[{"dataset": "payments"}])


@pytest.mark.parametrize(
    ("path", "right", "everything"), [("/", 200, 200), ("/metrics", 403, 200), ("/api/v1/anything", 404, 404)]
)
def test_every_http_path_requires_a_token(locked: Locked, path: str, right: int, everything: int) -> None:
    expected = {None: 401, "unknown": 401, "old": 401, "right": right, "all": everything}
    found = {}
    for name in expected:
        headers = {"Authorization": f"Bearer token-of-{name}"} if name else {}
        found[name] = locked.server.http_get(path, **headers)[0]
    assert found == expected
    password = base64.b64encode(b"anybody:token-of-all").decode()
    assert locked.server.http_get(path, Authorization=f"Basic {password}")[0] == everything


def test_probes_need_no_token_and_name_no_dataset(locked: Locked) -> None:
    assert locked.server.http_get("/livez")[0] == 200
    status, body = locked.server.http_get("/readyz")
    assert status == 200
    assert "flights" not in body and "payments" not in body


def test_a_token_sees_only_its_own_datasets(locked: Locked) -> None:
    with locked.connect() as client:
        listed = {name: len(list(client.list_flights(b"", options_of(name)))) for name in ("right", "other", "all")}
        assert listed == {"right": 1, "other": 1, "all": 2}
        with pytest.raises(FAILURES) as caught:
            client.get_flight_info(flight.FlightDescriptor.for_path("flihgts"), options_of("right"))
    assert "did you mean 'flights'" in str(caught.value) and "payments" not in str(caught.value)
    body = locked.server.http_get("/api/v1/datasets", Authorization="Bearer token-of-right")[1]
    assert [dataset["name"] for dataset in json.loads(body)["datasets"]] == ["flights"]


def test_clients_without_tls_or_with_another_ca_cannot_connect(locked: Locked) -> None:
    with pytest.raises(FAILURES):
        flight.connect(f"grpc://{locked.server.grpc}").get_schema(DATASET, options_of("all"))
    with pytest.raises(FAILURES):
        strangers = trustme.CA().cert_pem.bytes()
        flight.connect(locked.server.location, tls_root_certs=strangers).get_schema(DATASET, options_of("all"))


def test_silent_connections_do_not_delay_others(locked: Locked) -> None:
    host, port = locked.server.grpc.split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(20)]
    with locked.connect() as client:
        client.get_schema(DATASET, options_of("all"))
    for each in silent:
        each.close()


def test_a_silent_connection_is_closed(locked: Locked) -> None:
    """The first bytes must arrive within ten seconds, so that silent clients cannot use up the connection limit."""
    silent = []
    for address in (locked.server.grpc, locked.server.http):
        host, port = address.split(":")
        context = ssl.create_default_context()
        locked.authority.configure_trust(context)
        connection = socket.create_connection((host, int(port)), timeout=20)
        silent.append(context.wrap_socket(connection, server_hostname="127.0.0.1"))
    for each in silent:
        while each.recv(1 << 16):
            pass  # HTTP/2 may send its settings first.


def test_the_example_of_the_docs_runs_as_written(locked: Locked) -> None:
    page = (ROOT / "docs" / "how-to" / "secure.md").read_text()
    (block,) = (block for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "grpc+tls" in block)
    (locked.folder / "ca.pem").write_bytes(locked.authority.cert_pem.bytes())
    block = block.replace("grpc+tls://server.example:8815", locked.server.location)
    train = {"train": {"dataset": "flights", "columns": ["delay"], "batch_size": 4096}}
    names: dict[str, Any] = {"fl": flight, "json": json, "train": train, "token": b"token-of-right"}
    exec(block.replace('"ca.pem"', repr(str(locked.folder / "ca.pem"))), names)
    assert names["reader"].read_all().num_rows == 3_000_000


def test_a_stream_ends_when_its_token_is_revoked(flights: Path, pool: Pool, tmp_path: Path) -> None:
    locked = start(pool, flights, tmp_path)
    endless = command(dataset="flights", batch_size=4096, epochs=100_000)
    with locked.connect() as client:
        stream = client.do_get(flight.Ticket(endless), options_of("right"))
        stream.read_chunk()
        token_file(locked.tokens, all=(["*"], None))
        with pytest.raises(FAILURES) as caught:
            for _ in stream:
                pass
        assert status_of(caught.value) == "UNAUTHENTICATED", caught.value
        client.get_schema(DATASET, options_of("all"))


def test_a_new_certificate_is_served_without_a_restart(flights: Path, pool: Pool, tmp_path: Path) -> None:
    locked = start(pool, flights, tmp_path)
    renewed = trustme.CA()
    write_certificate(renewed, tmp_path)

    def trusted() -> bool:
        try:
            roots = renewed.cert_pem.bytes()
            flight.connect(locked.server.location, tls_root_certs=roots).get_schema(DATASET, options_of("all"))
        except FAILURES:
            return False
        return True

    until(trusted)


def test_with_a_client_ca_only_its_certificates_are_accepted(
    flights: Path, pool: Pool, tmp_path: Path
) -> None:
    clients = trustme.CA()
    clients.cert_pem.write_to_path(tmp_path / "clients.pem")
    issued = clients.issue_cert("trainer@example.com")
    own = {"cert_chain": issued.cert_chain_pems[0].bytes(), "private_key": issued.private_key_pem.bytes()}
    authority = trustme.CA()
    write_certificate(authority, tmp_path)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    issued.configure_cert(context)
    server = pool.start(
        {"flights": flights},
        tls_certificate=tmp_path / "certificate.pem",
        tls_key=tmp_path / "key.pem",
        tls_client_ca=tmp_path / "clients.pem",
        tls=context,
    )
    roots = authority.cert_pem.bytes()
    flight.connect(server.location, tls_root_certs=roots, **own).get_schema(DATASET)
    with pytest.raises(FAILURES):
        flight.connect(server.location, tls_root_certs=roots).get_schema(DATASET)
    foreign = trustme.CA().issue_cert("trainer@example.com")
    with pytest.raises(FAILURES):
        flight.connect(
            server.location,
            tls_root_certs=roots,
            cert_chain=foreign.cert_chain_pems[0].bytes(),
            private_key=foreign.private_key_pem.bytes(),
        ).get_schema(DATASET)
    server.tls = ssl.create_default_context()
    authority.configure_trust(server.tls)
    assert server.http_get("/livez")[0] == 0, "HTTP requires a certificate, too"


@pytest.mark.parametrize("flag", ["--grpc", "--http"])
def test_a_non_loopback_address_requires_tls_and_tokens(tmp_path: Path, flag: str) -> None:
    other = "--http" if flag == "--grpc" else "--grpc"
    done = forebay("serve", "--cache-dir", tmp_path, flag, "0.0.0.0:0", other, "127.0.0.1:0")
    assert done.returncode != 0
    for word in (flag, "--tls-certificate", "--tls-key", "--tokens", "--insecure"):
        assert word in done.stderr


def test_client_certificates_without_a_server_certificate_are_refused_at_the_start(tmp_path: Path) -> None:
    addresses = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
    done = forebay("serve", "--cache-dir", tmp_path, *addresses, "--tls-client-ca", tmp_path / "ca.pem")
    assert done.returncode != 0
    assert "--tls-client-ca: expected --tls-certificate and --tls-key, too" in done.stderr


def test_insecure_allows_a_non_loopback_address(flights: Path, pool: Pool) -> None:
    server = pool.start({"flights": flights}, grpc="0.0.0.0:0", env={"FOREBAY_INSECURE": "true"})
    flight.connect(server.location).get_schema(DATASET)


def test_a_wrong_tls_key_or_an_invalid_token_file_fails_the_start(
    flights: Path, pool: Pool, tmp_path: Path
) -> None:
    write_certificate(trustme.CA(), tmp_path)
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(tmp_path / "key.pem")
    files = {"tls_certificate": tmp_path / "certificate.pem", "tls_key": tmp_path / "key.pem"}
    with pytest.raises(StartError, match="key.pem"):
        pool.start({"flights": flights}, **files)
    broken = tmp_path / "tokens.toml"
    broken.write_text("[a]\nsha256 = 'short'\ndatasets = ['*']\n")
    with pytest.raises(StartError, match="token 'a'"):
        pool.start({"flights": flights}, tokens=broken)
    with pytest.raises(StartError, match="absent.toml"):
        pool.start({"flights": flights}, tokens=tmp_path / "absent.toml")
