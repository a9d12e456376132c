"""An S3 server for the tests, which verifies the signature of every request, as Amazon's does."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Callable, Iterator
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET, REGION = "bucket", "eu-central-1"


class Store(ThreadingHTTPServer):
    """A bucket in memory, and the secret access keys of those who may read it, by the id of the key."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.objects: dict[str, bytes] = {}
        self.secrets: dict[str, str] = {}
        self.refused = 0
        self.reads: list[str] = []
        # Called with the key before an object is sent.
        self.before_read: Callable[[str], None] = lambda key: None

    @property
    def endpoint(self) -> str:
        """URL of the server."""
        return f"http://127.0.0.1:{self.server_port}"

    def environment(self, key_id: str, secret: str) -> dict[str, str]:
        """Returns the environment of a process with this access key."""
        return {**self.without_key(), "AWS_ACCESS_KEY_ID": key_id, "AWS_SECRET_ACCESS_KEY": secret}

    def without_key(self) -> dict[str, str]:
        """Returns the environment of a process without an access key."""
        return {"AWS_ENDPOINT": self.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": REGION}


@contextlib.contextmanager
def s3_store() -> Iterator[Store]:
    """Runs a store until the context ends."""
    with Store() as store:
        threading.Thread(target=store.serve_forever, daemon=True).start()
        yield store
        store.shutdown()


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""

    def do_GET(self) -> None:  # noqa: N802
        if not self._is_signed():
            self.server.refused += 1
            return self._send(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        url = urlsplit(self.path)
        _, bucket, *key = unquote(url.path).split("/", 2)
        if bucket != BUCKET:
            return self._send(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        if not key or not key[0]:
            return self._send(200, self._listing(parse_qs(url.query)))
        body = self.server.objects.get(key[0])
        if body is None:
            return self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
        tag = _tag(body)
        if self.headers.get("If-Match", tag) != tag:
            return self._send(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        self.server.before_read(key[0])
        self.server.reads.append(key[0])
        headers = {"ETag": tag, "Last-Modified": "Sat, 01 Nov 2025 00:00:00 GMT", "Accept-Ranges": "bytes"}
        if asked := self.headers.get("Range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            begin, end = (int(first), int(last or len(body) - 1) + 1) if first else (max(0, len(body) - int(last)), len(body))
            part = body[begin:end]
            headers["Content-Range"] = f"bytes {begin}-{begin + len(part) - 1}/{len(body)}"
            return self._send(206, part, headers)
        self._send(200, body, headers)

    do_HEAD = do_GET

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        contents, folders = [], set()
        for key, body in sorted(self.server.objects.items()):
            if not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                continue
            contents.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>2025-11-01T00:00:00.000Z</LastModified>"
                f"<ETag>{escape(_tag(body))}</ETag><Size>{len(body)}</Size></Contents>"
            )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders))
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(contents)}{common}</ListBucketResult>".encode()

    def _is_signed(self) -> bool:
        """Verifies the signature of version 4 of the request."""
        given = self.headers.get("Authorization", "")
        fields = dict(part.strip().partition("=")[::2] for part in given.removeprefix("AWS4-HMAC-SHA256 ").split(","))
        scope = fields.get("Credential", "").split("/")
        secret = self.server.secrets.get(scope[0])
        if secret is None or len(scope) != 5:
            return False
        url, names = urlsplit(self.path), fields["SignedHeaders"].split(";")
        query = "&".join(sorted(part if "=" in part else f"{part}=" for part in url.query.split("&") if part))
        headers = "".join(f"{name}:{' '.join((self.headers.get(name) or '').split())}\n" for name in names)
        payload = self.headers.get("x-amz-content-sha256", "")
        canonical = "\n".join((self.command, url.path, query, headers, ";".join(names), payload))
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = "\n".join(("AWS4-HMAC-SHA256", self.headers.get("x-amz-date", ""), "/".join(scope[1:]), digest))
        key = f"AWS4{secret}".encode()
        for part in scope[1:]:
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        return hmac.compare_digest(signature, fields.get("Signature", ""))


def _tag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'
