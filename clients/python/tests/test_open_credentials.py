"""Credentials of processes for `forebay.open`: each is served with its own, and no other process reads what they gave access to."""

from __future__ import annotations

import io
import json
import os
import socket
import socketserver
import threading
from pathlib import Path
from typing import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay import credentials, errors
from forebay.local_http import get
from s3_store import BUCKET, REGION, Store, s3_store
from test_open import Host, ended, host  # noqa: F401

pytestmark = pytest.mark.once

ID, SECRET = "AKIAFOREBAYTEST", "a-very-secret-access-key/0123456789"
URL = f"s3://{BUCKET}/rows"
ROWS = 20_000

# Prints what a process may do with the name of a dataset that another one has opened.
NAMED = """
client = forebay.connect("unix:" + os.environ["XDG_RUNTIME_DIR"] + "/forebay/grpc.sock")
name = sys.argv[1]

def refused(call):
    try:
        return "read: " + repr(call())
    except forebay.Error as error:
        return type(error).__name__

requests = [
    lambda: client.dataset(name),
    lambda: client.train(name, batch_size=10).num_rows,
    lambda: client.lookup(name, {"n": [1]}),
    lambda: client.refresh(name),
    lambda: client.action("count-rows", train={"dataset": name, "batch_size": 10}),
    lambda: client.action("drop-cache", dataset=name),
]
print([refused(each) for each in requests], [each.name for each in client.datasets()])
"""

OPENED = """
ds = forebay.open(sys.argv[1], key="n")
print(ds.name, ds.num_rows, ds.lookup({"n": [7]}).to_numpy()["n"].tolist(), sum(b.num_rows for b in training_of(ds)), flush=True)
"""
TRAINING = """
def training_of(ds):
    return ds.train(batch_size=1000, columns=["n"], filter="n >= 0", seed=5, job_name="credentials")
"""


@pytest.fixture
def store() -> Iterator[Store]:
    with s3_store() as running:
        for number in range(2):
            file = io.BytesIO()
            table = pa.table({"n": range(number * ROWS // 2, (number + 1) * ROWS // 2)})
            pq.write_table(table, file, row_group_size=2000)
            running.objects[f"rows/part-{number}.parquet"] = file.getvalue()
        running.secrets[ID] = SECRET
        yield running


def opened(line: str) -> str:
    """Returns the name of the dataset of a process that has read all rows."""
    name, *rest = line.strip().split(maxsplit=1)
    assert rest == [f"{ROWS} [7] {ROWS}"], line
    return name


def test_a_process_without_the_credentials_reads_nothing_of_what_is_cached(host: Host, store: Store) -> None:  # noqa: F811
    mine = store.environment(ID, SECRET)
    holder = host.start(TRAINING + OPENED + "input()", URL, **mine)
    name = opened(holder.stdout.readline())
    pid, reads = host.pid(), len(store.reads)
    failing = "try:\n    forebay.open(sys.argv[1])\nexcept forebay.Error as error:\n    print(type(error).__name__, error)"
    for other in (
        store.environment(ID, "another-secret"),
        store.environment("AKIAOTHER", SECRET),
        {**mine, "AWS_SESSION_TOKEN": "", "AWS_SECRET_ACCESS_KEY": ""},
    ):
        failure = host.run(failing, URL, **other)
        # An empty variable counts as not set, and a key without its secret is refused.
        is_refused = "AWS_SECRET_ACCESS_KEY is not; set both" in failure if "" in other.values() else "403" in failure or "denied" in failure.lower()
        assert "rows" in failure and is_refused, failure
        assert SECRET not in failure
    assert store.refused > 0 and host.pid() == pid
    refused = "['PermissionDeniedError', 'PermissionDeniedError', 'PermissionDeniedError', 'PermissionDeniedError', 'PermissionDeniedError', 'PermissionDeniedError'] []"
    assert host.run(NAMED, name, **store.environment(ID, "another-secret")) == refused
    assert host.run(NAMED, name) == refused
    assert len(store.reads) == reads
    # The same credentials find what is cached.
    assert opened(host.run(TRAINING + OPENED, URL, **mine)) == name
    assert len(store.reads) == reads
    holder.communicate("\n", timeout=60)


def test_other_spellings_of_a_url_are_the_same_dataset_with_the_same_credentials(host: Host, store: Store) -> None:  # noqa: F811
    program = """
names = []
for url in sys.argv[1:]:
    try:
        names.append(forebay.open(url).name)
    except forebay.Error as error:
        names.append(f"{type(error).__name__}: {error}")
print(*names, sep="\\n")
"""
    spellings = [URL, f" {URL}", f"\t\n{URL}", f"{URL} ", f"\u00a0{URL}\r\n", URL.replace("s3:", "S3:")]
    name = opened(host.run(TRAINING + OPENED, URL, **store.environment(ID, SECRET)))
    assert host.run(program, *spellings, **store.environment(ID, SECRET)).splitlines() == [name] * len(spellings)
    # The server does not read for a process without credentials what it reads with those of another one.
    reads = len(store.reads)
    for line in host.run(program, *spellings).splitlines():
        assert name not in line and "Error: " in line, line
    assert len(store.reads) == reads


def test_processes_with_different_credentials_have_different_datasets(host: Host, store: Store) -> None:  # noqa: F811
    store.secrets["AKIASECOND"] = "second"
    first = opened(host.run(TRAINING + OPENED, URL, **store.environment(ID, SECRET)))
    reads = len(store.reads)
    second = opened(host.run(TRAINING + OPENED, URL, **store.environment("AKIASECOND", "second")))
    assert first != second and first.rpartition("-k")[0] == second.rpartition("-k")[0]
    # The second one reads footers and columns with its own credentials.
    assert len(store.reads) - reads >= reads > 0


def test_a_profile_is_read_by_the_process_that_opens(host: Host, store: Store) -> None:  # noqa: F811
    home = host.folder / "home"
    (home / ".aws").mkdir(parents=True)
    (home / ".aws" / "credentials").write_text(f"[work]\naws_access_key_id = {ID}\naws_secret_access_key = {SECRET}\n")
    (home / ".aws" / "config").write_text(f"[profile work]\nregion = {REGION}\nendpoint_url = {store.endpoint}\n")
    # The server is started by a process without credentials.
    pq.write_table(pa.table({"n": [1]}), host.folder / "local.parquet")
    starter = host.start("forebay.open(sys.argv[1]); print('open', flush=True); input()", host.folder / "local.parquet")
    assert starter.stdout.readline() == "open\n"
    environment = {"HOME": str(home), "AWS_PROFILE": "work", "AWS_ALLOW_HTTP": "true"}
    name = opened(host.run(TRAINING + OPENED, URL, **environment))
    keys = {"AWS_ACCESS_KEY_ID": ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION}
    same = {**keys, "AWS_ENDPOINT_URL": store.endpoint, "AWS_ALLOW_HTTP": "true"}
    assert opened(host.run(TRAINING + OPENED, URL, **same)) == name, "a profile and the same variables are the same credentials"
    failing = "try:\n    forebay.open(sys.argv[1])\nexcept forebay.Error as error:\n    print(error)"
    missing = host.run(failing, URL, **{**environment, "AWS_PROFILE": "absent"})
    assert missing.startswith("there is no AWS profile 'absent' in ") and str(home) in missing
    starter.communicate("\n", timeout=60)


def test_a_restarted_server_gets_the_credentials_again(host: Host, store: Store) -> None:  # noqa: F811
    program = (
        TRAINING
        + """
ds = forebay.open(sys.argv[1])
expected = [batch["n"].to_numpy().tolist() for batch in training_of(ds)]
found = []
for batch in training_of(ds):
    found.append(batch["n"].to_numpy().tolist())
    if batch.step in (3, 11):
        kill_server()
assert found == expected
kill_server()
print(ds.num_rows, len(found))
"""
    )
    assert host.run(program, URL, **store.environment(ID, SECRET)) == f"{ROWS} {ROWS // 1000}"


def test_a_mixed_dataset_gets_its_credentials_again_after_its_object_is_gone(host: Host, store: Store) -> None:  # noqa: F811
    program = """
import gc, pickle
main, mixed = (forebay.open(url, retry_deadline=30) for url in sys.argv[1:])
options = dict(batch_size=1000, mix={mixed.name: 0.25}, columns=["n"], seed=5)
expected = [batch["n"].to_numpy().tolist() for batch in main.train(**options)]
training = main.train(**options, values={"n": [1]}, filter="NOT n IN (:n) OR n IS NOT NULL")
alone = main.train(**options)
del mixed
gc.collect()
found = []
for batch in alone:
    found.append(batch["n"].to_numpy().tolist())
    if batch.step == 3:
        kill_server()
assert found == expected
kill_server()
assert [batch["n"].to_numpy().tolist() for batch in training.steps(len(expected))] == expected
kill_server()
assert pickle.loads(pickle.dumps(alone)).num_rows == alone.num_rows
print(len(found))
"""
    for name, body in list(store.objects.items()):
        store.objects[name.replace("rows/", "more/")] = body
    found = host.run(program, URL, f"s3://{BUCKET}/more", **store.environment(ID, SECRET))
    assert int(found) > 20


def test_a_checkpoint_continues_with_other_credentials(host: Host, store: Store) -> None:  # noqa: F811
    store.secrets["AKIAFOREBAYOTHER"] = "another-secret"
    saving = TRAINING + """
import json
training = training_of(forebay.open(sys.argv[1]))
found = [batch["n"].to_numpy().tolist() for batch in training.steps(5)]
print(json.dumps([training.state_dict(), [batch["n"].to_numpy().tolist() for batch in training.epochs(1)]]))
"""
    saved = host.run(saving, URL, **store.environment(ID, SECRET))
    loading = TRAINING + """
import json
state, rest = json.loads(sys.argv[2])
ds = forebay.open(sys.argv[1])
training = training_of(ds)
training.load_state_dict(state)
assert [batch["n"].to_numpy().tolist() for batch in training.epochs(1)] == rest and len(rest) == 15
assert ds.name != state["request"]["dataset"], "the name depends on the credentials"
assert training.state_dict()["request"]["dataset"] == ds.name
print("continued")
"""
    assert host.run(loading, URL, saved, **store.environment("AKIAFOREBAYOTHER", "another-secret")) == "continued"


def test_secrets_are_in_no_file_ticket_checkpoint_or_answer(host: Host, store: Store) -> None:  # noqa: F811
    program = (
        TRAINING
        + """
import json, pickle
ds = forebay.open(sys.argv[1], key="n")
training = training_of(ds)
for batch in training:
    pass
ds.lookup({"n": [7]})
everything = [pickle.dumps(ds), pickle.dumps(training), json.dumps(training.state_dict()).encode(), repr(ds).encode()]
everything.append(repr(ds.client.action("refresh", dataset=ds.name)).encode())
assert pickle.loads(pickle.dumps(ds)).num_rows == ds.num_rows
print(b"".join(everything).hex(), flush=True)
input()
"""
    )
    environment = {**store.environment(ID, SECRET), "FOREBAY_LOG": "trace"}
    process = host.start(program, URL, **environment)
    proof = credentials.proof(credentials.credentials_for(URL, environment))
    secrets = [each.encode() for each in (SECRET, SECRET.replace("/", "%2F"), SECRET.replace("/", "\\/"), proof)]
    pieces = {"printed": bytes.fromhex(process.stdout.readline())}
    for resource in ("overview", "datasets", "sessions", "events", "state"):
        try:
            pieces[resource] = json.dumps(get(host.runtime / "http.sock", f"/api/v1/{resource}")).encode()
        except OSError as error:
            pieces[resource] = str(error).encode()
    process.communicate("\n", timeout=60)
    files = [path for path in host.folder.rglob("*") if path.is_file()]
    assert any("columns" in path.parts for path in files) and any(path.name == "server.log" for path in files)
    for path in files:
        pieces[str(path)] = path.read_bytes() + str(path).encode()
    assert b"rows-" in pieces["datasets"], "the dashboard lists the dataset"
    found = [(where, secret) for where, piece in pieces.items() for secret in secrets if secret in piece]
    assert not found


def test_secrets_are_in_no_error_progress_line_or_log(host: Host, store: Store, request: pytest.FixtureRequest) -> None:  # noqa: F811
    secret = "TOPSECRETvalue"
    # The address refuses connections, because no socket listens at it.
    refusing = socket.socket()
    refusing.bind(("127.0.0.1", 0))
    base = f"http://127.0.0.1:{refusing.getsockname()[1]}"
    with_user = base.replace("//", f"//user:{secret}@")
    # This server closes each connection without an answer, so that each request to it is tried again.
    silent = socketserver.ThreadingTCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)
    threading.Thread(target=silent.serve_forever, daemon=True).start()
    request.addfinalizer(silent.shutdown)
    token = host.folder / "token"
    token.write_text(secret)
    aws = {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": REGION, "AWS_ALLOW_HTTP": "true"}
    account = {"private_key": secret, "private_key_id": "x", "client_email": "a", "gcs_base_url": with_user}
    azure = {"AZURE_STORAGE_ACCOUNT_NAME": "account"}
    # URL, variables, and what the error names.
    cases = [
        (URL, {**aws, "AWS_ENDPOINT": with_user}, "AWS_ENDPOINT"),
        (URL, {**aws, "AWS_PROXY_URL": with_user}, "AWS_PROXY_URL"),
        (URL, {**aws, "AWS_SECRET_ACCESS_KEY": secret + "\n", "AWS_ENDPOINT": base}, "AWS_SECRET_ACCESS_KEY"),
        (URL, {**aws, "AWS_SESSION_TOKEN": secret + "\nx", "AWS_ENDPOINT": base}, "AWS_SESSION_TOKEN"),
        (URL, {**aws, "AWS_SERVER_SIDE_ENCRYPTION": "KMS" + secret}, "AWS_SERVER_SIDE_ENCRYPTION"),
        (URL, {**aws, "AWS_ENDPOINT": base}, base),
        ("gs://bucket/rows", {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(secret)}, "GOOGLE_SERVICE_ACCOUNT_KEY"),
        ("gs://bucket/rows", {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account)}, "GOOGLE_SERVICE_ACCOUNT_KEY"),
        ("az://bucket/rows", {**azure, "AZURE_STORAGE_TOKEN": secret + "\n"}, "AZURE_STORAGE_TOKEN"),
        (
            URL,
            {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://127.0.0.1:{silent.server_address[1]}/{secret}",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
                "AWS_REGION": REGION,
            },
            "value of AWS_CONTAINER_CREDENTIALS_FULL_URI",
        ),
    ]
    # The last case waits for the store, so that the process prints a line about its progress.
    program = """
import json
for url, variables, deadline in json.loads(sys.stdin.read()):
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        del os.environ[name]
    os.environ.update(variables)
    try:
        forebay.open(url, retry_deadline=deadline)
    except forebay.Error as error:
        print(json.dumps(str(error)))
try:
    client = forebay.connect("unix:" + os.environ["XDG_RUNTIME_DIR"] + "/forebay/grpc.sock")
    client.action("open", url=url, credentials="TOPSECRETvalue")
except forebay.Error as error:
    print(json.dumps(str(error)))
"""
    asked = [[url, variables, 6 if index == len(cases) - 1 else 3] for index, (url, variables, _) in enumerate(cases)]
    process = host.start(program, **store.environment(ID, SECRET))
    out, progress = process.communicate(json.dumps(asked), timeout=240)
    assert process.returncode == 0, progress
    errors = [json.loads(line) for line in out.splitlines()]
    assert "OpenRequest" in errors.pop()
    assert len(errors) == len(cases)
    for error, (url, _, named) in zip(errors, cases):
        assert named in error and "panicked" not in error, f"{url}: {error}"
    assert "waiting for" in progress, progress
    log = host.log()
    assert "open" in log and "panicked" not in log
    assert secret not in out + progress + log
    refusing.close()
    # The credentials of the environment are good.
    assert opened(host.run(TRAINING + OPENED, URL, **store.environment(ID, SECRET)))


def test_secrets_in_urls_are_refused_and_in_no_error_or_log(host: Host) -> None:  # noqa: F811
    secret = "TOPSECRETvalue"
    # URL, and how the error shows it.
    cases = [
        (f"https://127.0.0.1:9/f.parquet?X-Amz-Signature={secret}", "https://127.0.0.1:9/f.parquet?(not shown)"),
        (f"az://c/p?sv=1&sig={secret}", "az://c/p?(not shown)"),
        (f"s3://b/p?AWSAccessKeyId=k&Signature={secret}", "s3://b/p?(not shown)"),
        (f"https://127.0.0.1:9/f.parquet#{secret}", "https://127.0.0.1:9/f.parquet#(not shown)"),
        (f"s3://AK:{secret}@b/p", "s3://(not shown)@b/p"),
        (f"s3://{secret}@b/p", "s3://(not shown)@b/p"),
        (f"s3://AK%3A{secret}@b/p", "s3://(not shown)@b/p"),
        (f"https:/user:{secret}@host/p", "https:/(not shown)@host/p"),
        (f"file://user:{secret}@host/p", "file://(not shown)@host/p"),
    ]
    program = """
for url in sys.argv[1:]:
    try:
        forebay.open(url, retry_deadline=3)
    except forebay.Error as error:
        print(type(error).__name__, error)
"""
    lines = host.run(program, *(url for url, _ in cases)).splitlines()
    assert len(lines) == len(cases), lines
    for line, (_, shown) in zip(lines, cases):
        assert line.startswith("RequestError") and shown in line and secret not in line, line
    log = host.log()
    audited = [line for line in log.splitlines() if " audit: " in line]
    # The URL of a file is refused before a server is asked.
    assert len(audited) == len(cases) - 1 and secret not in log
    for line, (_, shown) in zip(audited, cases):
        assert shown in line, line


def test_the_dashboard_shows_a_dataset_but_no_rows_of_it(host: Host, store: Store) -> None:  # noqa: F811
    holder = host.start(TRAINING + OPENED + "input()", URL, **store.environment(ID, SECRET))
    name = opened(holder.stdout.readline())
    (shown,) = get(host.runtime / "http.sock", "/api/v1/datasets")["datasets"]
    assert (shown["name"], shown["rows"], shown["url"]) == (name, ROWS, URL)
    jobs = get(host.runtime / "http.sock", "/api/v1/jobs")
    assert "credentials" in json.dumps(jobs)
    with pytest.raises(OSError, match="was opened with credentials"):
        get(host.runtime / "http.sock", "/api/v1/explain?job_name=credentials&step=0")
    holder.communicate("\n", timeout=60)


def test_the_credentials_of_a_store_are_those_of_its_variables(tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    key.write_text("{}")
    environment = {
        "HOME": str(tmp_path),
        "PATH": "/bin",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_CONFIG_FILE": "/x",
        "AWS_PAGER": "less",
        "AWS_CREDENTIAL_EXPIRATION": "2026-01-01T00:00:00Z",
        "GOOGLE_APPLICATION_CREDENTIALS": str(key),
        "AZURE_USE_AZURE_CLI": "true",
        "IDENTITY_ENDPOINT": "http://msi",
    }
    of = {url: credentials.credentials_for(url, environment) for url in ("s3://b/x", "gs://b/x", "az://c/x", "/x", "https://h/x")}
    assert of["s3://b/x"] == {"AWS_ACCESS_KEY_ID": "id"}
    assert of["az://c/x"] == {"AZURE_USE_AZURE_CLI": "true", "AZURE_MSI_ENDPOINT": "http://msi", "HOME": str(tmp_path)}
    assert of["/x"] == of["https://h/x"] == {}
    first = credentials.proof(of["gs://b/x"])
    key.write_text('{"type": "service_account"}')
    assert credentials.proof(credentials.credentials_for("gs://b/x", environment)) != first, "another file at the same path"
    bearer = credentials.bearer_of("s3://b/x", of["s3://b/x"], environment)
    assert len(bearer.split(".")) == 3 and bearer.startswith(credentials.proof({"AWS_ACCESS_KEY_ID": "id"}))
    assert credentials.bearer_of("/x", {}, {"HOME": str(tmp_path)}) == ""


def test_relative_paths_of_credentials_are_relative_to_the_process_that_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key.json").write_text("{}")
    given = {
        "AWS_WEB_IDENTITY_TOKEN_FILE": "token",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/container/token",
        "AZURE_FEDERATED_TOKEN_FILE": "../token",
        "GOOGLE_APPLICATION_CREDENTIALS": "key.json",
    }
    of = {url: credentials.credentials_for(url, given) for url in ("s3://b/x", "gs://b/x", "az://c/x")}
    assert of["s3://b/x"] == {"AWS_WEB_IDENTITY_TOKEN_FILE": f"{tmp_path}/token", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/container/token"}
    assert of["az://c/x"] == {"AZURE_FEDERATED_TOKEN_FILE": f"{tmp_path.parent}/token"}
    assert of["gs://b/x"]["GOOGLE_APPLICATION_CREDENTIALS"] == f"{tmp_path}/key.json"
    # The server reads those for the URL of `state` itself.
    own = credentials.with_absolute_paths({"AWS_CONFIG_FILE": "config", "AWS_SHARED_CREDENTIALS_FILE": "", "AWS_REGION": "r"})
    assert own == {"AWS_CONFIG_FILE": f"{tmp_path}/config", "AWS_SHARED_CREDENTIALS_FILE": "", "AWS_REGION": "r"}


def test_profiles_are_read_as_the_server_reads_them(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = ID\naws_secret_access_key=SECRET\n# a comment\n"
        "[other]\naws_access_key_id = OTHER\naws_secret_access_key = S\naws_session_token = T\n"
    )
    (tmp_path / ".aws" / "config").write_text(
        "[default]\nregion = eu-central-1\n[profile other]\nregion = eu-west-1\nendpoint_url = https://store.example\n"
        "s3 =\n    region = ignored\n[profile sso]\nsso_session = company\n"
    )

    def read(**variables: str) -> dict[str, str]:
        return credentials.credentials_for(URL, {"HOME": str(tmp_path), **variables})

    other = {
        "AWS_ACCESS_KEY_ID": "OTHER",
        "AWS_SECRET_ACCESS_KEY": "S",
        "AWS_SESSION_TOKEN": "T",
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": "https://store.example",
    }
    assert read() == {"AWS_ACCESS_KEY_ID": "ID", "AWS_SECRET_ACCESS_KEY": "SECRET", "AWS_REGION": "eu-central-1"}
    assert read(AWS_PROFILE="other") == read(AWS_DEFAULT_PROFILE="other") == other
    assert read(AWS_ACCESS_KEY_ID="E", AWS_SECRET_ACCESS_KEY="F", AWS_PROFILE="other", AWS_REGION="r") == {
        "AWS_ACCESS_KEY_ID": "E",
        "AWS_SECRET_ACCESS_KEY": "F",
        "AWS_REGION": "r",
        "AWS_ENDPOINT_URL": "https://store.example",
    }
    with pytest.raises(errors.RequestError, match="there is no AWS profile 'absent' in .*config and .*credentials"):
        read(AWS_PROFILE="absent")
    with pytest.raises(errors.RequestError, match="the AWS profile 'sso' has sso_session, which is not supported"):
        read(AWS_PROFILE="sso")


def test_the_proof_is_that_of_the_server() -> None:
    # The same value is in services/storage/src/store/credentials.rs.
    given = {"AWS_SECRET_ACCESS_KEY": "secret", "AWS_ACCESS_KEY_ID": "id"}
    assert credentials.proof(given) == "1768e1c431e978c73c77de3520fe5dc6e31b998688c5e1bcc58650782ec9c140"
