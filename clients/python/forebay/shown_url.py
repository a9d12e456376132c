"""URLs without the parts that may be secret: users, passwords, queries and fragments. The server has the same rules."""

from __future__ import annotations

import re
from typing import NamedTuple

from forebay.errors import RequestError

# Text in place of a part that may be secret.
HIDDEN = "(not shown)"
# Schemes that make a text a URL, even with too few slashes. Such a text is a mistake, not a path.
SCHEMES = ("file", "s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "http", "https")
# Schemes with a bucket or container in place of a host, which has no port.
WITHOUT_PORT = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")
# Schemes in which the container can precede the account, as in `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net`.
WITH_CONTAINER = ("az", "abfs", "abfss")
# Suffixes of hosts before which a URL can have `CONTAINER@ACCOUNT`.
ACCOUNT_HOSTS = (".dfs.core.windows.net", ".blob.core.windows.net", ".dfs.fabric.microsoft.com", ".blob.fabric.microsoft.com")
CONTAINER = re.compile(r"[A-Za-z0-9_$-]{1,63}")

# White space and control characters, which parsers of URLs ignore before a URL.
_BLANK = r"[\s\x00-\x1f\x7f-\x9f]*"
_KNOWN_SCHEME = re.compile(f"{_BLANK}({'|'.join(SCHEMES)}):", re.IGNORECASE)
# A URL with any scheme, or without one, and with text before it.
_ANY_SCHEME = re.compile(r"([A-Za-z0-9+.-]*):(?=//)")
_USER_ALONE = re.compile(_BLANK + r"(?!\.)(?=[^/]*:[^/]*@)")


class _Parts(NamedTuple):
    """Parts of a text with a URL. It need not be well-formed."""

    # Text before the user or the host: the scheme, its slashes, and other text before the URL.
    start: str
    user: str | None
    # Host and path.
    place: str
    query: str | None
    fragment: str | None


def shown_url(text: str) -> str:
    """Returns a URL, or a text that contains one, with `(not shown)` in place of users, passwords, queries and fragments."""
    parts = _parts(text)
    if parts is None:
        return text
    user = "" if parts.user is None else f"{HIDDEN}@"
    query = "" if parts.query is None else f"?{HIDDEN}"
    fragment = "" if parts.fragment is None else f"#{HIDDEN}"
    return f"{parts.start}{user}{parts.place}{query}{fragment}"


def check_url(name: str, url: str) -> None:
    """Checks that a path or URL has no part that may be secret, before it is written to a place where others can read it.

    Args:
        name: Name of the argument.
        url: The path or URL.

    Raises:
        RequestError: It has a user, a password, a query or a fragment. The message does not contain it.
    """
    parts = _parts(url)
    if parts is None:
        return
    if parts.user is not None:
        detail = "a user or password in the URL is not supported; use credentials in the environment"
    elif parts.query is not None:
        detail = "a query (?...), such as that of a presigned or SAS URL, is not supported; use credentials in the environment"
    elif parts.fragment is not None:
        detail = "a fragment (#...) is not supported; write a # in a name as %23"
    else:
        return
    raise RequestError(f"{name} is {shown_url(url)!r}: {detail}")


def _parts(text: str) -> _Parts | None:
    """Returns the parts of a text; None for a path."""
    if text.startswith("/"):
        return None
    if found := _KNOWN_SCHEME.match(text) or _ANY_SCHEME.search(text):
        scheme, begin = found[1].lower(), found.end()
    elif found := _USER_ALONE.match(text):
        scheme, begin = "", found.end()
    else:
        return None
    is_web = scheme.startswith("http")
    slashes = r"[/\\]*" if is_web else r"[/\\]{0,2}" if scheme == "file" else "/{0,2}"
    after = re.compile(slashes).match(text, begin)
    begin = begin if after is None else after.end()
    start, rest = text[:begin], text[begin:]
    user = _user(scheme, rest)
    if user is not None:
        rest = rest[len(user) + 1 :]
    rest, fragment = _divided(rest, "#")
    place, query = _divided(rest, "?")
    return _Parts(start, user, place, query, fragment)


def _user(scheme: str, rest: str) -> str | None:
    """Returns the user of a URL after its scheme and slashes, also if a character of the password is not encoded."""
    authority = re.split(r"[/\\?#]", rest, maxsplit=1)[0]
    user, at, host = authority.rpartition("@")
    if at:
        is_container = scheme in WITH_CONTAINER and host.endswith(ACCOUNT_HOSTS) and CONTAINER.fullmatch(user)
        return None if is_container else user
    _, colon, port = authority.rpartition("]")[2].partition(":")
    is_port = port.isascii() and port.isdecimal()
    if not colon or (is_port and scheme not in WITHOUT_PORT):
        return None
    # The password ends at the last @ of all that it can be part of.
    user, at, _ = rest.rpartition("@")
    return user if at else None


def _divided(text: str, sign: str) -> tuple[str, str | None]:
    before, found, after = text.partition(sign)
    return before, after if found else None
