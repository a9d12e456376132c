"""URLs with secrets are recognized as by the server: its tests have the same table."""

from __future__ import annotations

from typing import Any

import pytest

import forebay
from forebay.shown_url import check_url, shown_url

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h/f.parquet?X-Amz-Signature=SECRET", "https://h/f.parquet?(not shown)"),
        ("az://c/p?sv=1&sig=SECRET", "az://c/p?(not shown)"),
        ("s3://b/p?Signature=SECRET#SECRET", "s3://b/p?(not shown)#(not shown)"),
        ("gs://b/p#SECRET?SECRET", "gs://b/p#(not shown)"),
        ("file:///f.parquet?SECRET", "file:///f.parquet?(not shown)"),
        ("https://h/f?", "https://h/f?(not shown)"),
        ("s3://SECRET@bucket/x", "s3://(not shown)@bucket/x"),
        ("s3://KEY%3ASECRET@bucket/x", "s3://(not shown)@bucket/x"),
        ("S3A://KEY:SECRET@bucket/x", "S3A://(not shown)@bucket/x"),
        ("s3://KEY:/SEC/RET@bucket/x", "s3://(not shown)@bucket/x"),
        ("s3://KEY:1/SECRET@bucket/x", "s3://(not shown)@bucket/x"),
        ("file://user:SECRET@host/x", "file://(not shown)@host/x"),
        ("ftp://user:SECRET@host/x", "ftp://(not shown)@host/x"),
        ("https://user:SECRET@host:99999999/x", "https://(not shown)@host:99999999/x"),
        ("https://user:SECRET@host/a@b", "https://(not shown)@host/a@b"),
        ("https://user:SEC/RET@host/a", "https://(not shown)@host/a"),
        ("https://user:SEC?RET@host/a", "https://(not shown)@host/a"),
        ("https://user:SEC#RET@host/a?x", "https://(not shown)@host/a?(not shown)"),
        ("https:/user:SECRET@host/x", "https:/(not shown)@host/x"),
        ("https:\\\\user:SECRET@host/x", "https:\\\\(not shown)@host/x"),
        ("https:///SECRET@host/x", "https:///(not shown)@host/x"),
        ("s3:SECRET@bucket", "s3:(not shown)@bucket"),
        (" https://user:SECRET@host/a", " https://(not shown)@host/a"),
        ("user:SECRET@host/x", "(not shown)@host/x"),
        ("us@er:SECRET@host/x", "(not shown)@host/x"),
        ("abfss://c:SECRET@a.dfs.core.windows.net/x", "abfss://(not shown)@a.dfs.core.windows.net/x"),
        ("abfss://SECRET@host/x", "abfss://(not shown)@host/x"),
        ("s3://SECRET@a.dfs.core.windows.net/x", "s3://(not shown)@a.dfs.core.windows.net/x"),
        ("clicks https://u:SECRET@h/x", "clicks https://(not shown)@h/x"),
        ("clicks:s3://SECRET@b/x?SECRET", "clicks:s3://(not shown)@b/x?(not shown)"),
    ],
)
def test_what_may_be_secret_is_not_shown_and_the_url_is_refused(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    with pytest.raises(forebay.errors.RequestError, match="state is .*not supported") as refused:
        check_url("state", url)
    assert repr(shown) in str(refused.value) and "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "/data/a@b?c#d",
        "/data/x://y@z?a",
        "data/a:b@c",
        "./a:b@c",
        "a@b",
        "s3://bucket/day=1@2/x",
        "s3://",
        "https://host:9000/a@b",
        "https://[::1]:9000/a@b",
        "https://[::1]/a@b",
        "https://host/a%3Fb%23c",
        "file:///data/a@b",
        "abfss://container@account.dfs.core.windows.net/x@y",
        "az://My_Workspace@onelake.dfs.fabric.microsoft.com/x",
    ],
)
def test_paths_and_other_urls_are_shown_as_they_are(url: str) -> None:
    assert shown_url(url) == url
    check_url("state", url)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"state": "s3://KEY:SECRET@bucket/state"}, r"state is 's3://\(not shown\)@bucket/state': a user or password"),
        ({"state": "https://host/state?sig=SECRET"}, r"state is 'https://host/state\?\(not shown\)': a query"),
        ({"cache_dir": "s3://KEY:SECRET@bucket/cache"}, r"cache_dir is 's3://\(not shown\)@bucket/cache': a user or password"),
        ({"cache_dir": "s3://bucket/cache"}, "cache_dir is 's3://bucket/cache', expected the path of a folder on this host"),
    ],
)
def test_a_secret_in_a_setting_is_refused_before_a_server_has_it_on_its_command_line(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], expected: str
) -> None:
    monkeypatch.setattr("forebay.dataset.local_server", lambda: pytest.fail("a server is used"))
    with pytest.raises(forebay.errors.RequestError, match=expected) as refused:
        forebay.open("/data/rows.parquet", **settings)
    assert "SECRET" not in str(refused.value)
