"""Checks of arguments, so that an error names the argument and its value before anything is sent."""

from __future__ import annotations

import numbers
import operator
import os
import re
from typing import Any, Mapping, Sequence

import numpy as np

from forebay.errors import RequestError

# Largest integer that a field of a request can hold.
MAX_NUMBER = 2**64 - 1
# Options of `connect` whose values are secret, or could be by mistake. Errors do not repeat these values.
SECRET = ("token", "token_file", "key", "certificate", "ca")
# Options with the path of a PEM file, and the beginning of the content of one.
PEM_FILES, PEM_START = ("key", "certificate", "ca"), "-----BEGIN"
# Beginning of a URL of a server, and the form of one without a scheme, HOST:PORT. The native client checks the rest.
SERVER_SCHEME = re.compile(r"\s*([a-z][a-z0-9+.-]*://|unix:)", re.IGNORECASE)
HOST_PORT = re.compile(r"(\[[0-9a-f:.%]+\]|[a-z0-9_.-]+):[0-9]{1,5}/?", re.IGNORECASE)


def whole_number(name: str, value: Any, least: int = 0, most: int = MAX_NUMBER) -> int:
    """Returns an integer of Python or NumPy as an `int`, if it is within limits.

    Raises:
        RequestError: The value is no whole number from `least` to `most`. The error names the argument.
    """
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        is_limit_of_type = most >= 2**63 - 1 and (number is None or number < least)
        expected = f"of at least {least}" if is_limit_of_type else f"from {least} to {most}"
        raise RequestError(f"{name} is {value!r}, expected a whole number {expected}")
    return number


def text(name: str, value: Any, form: str = "") -> str | None:
    """Returns a string or None.

    Args:
        name: Name of the argument.
        value: Its value.
        form: Form of the string, for the error.

    Raises:
        RequestError: The value is something else.
    """
    if value is not None and not isinstance(value, str):
        raise RequestError(f"{name} is {value!r}, expected a string {form}".rstrip())
    return value


def number(name: str, value: Any, expected: str) -> None:
    """Checks that a value is a number.

    Raises:
        RequestError: It is something else, such as a truth value.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise RequestError(f"{name} is {value!r}, expected {expected}")


def check_server_urls(urls: Sequence[Any]) -> None:
    """Checks that the arguments of `connect` look like URLs of servers. The errors do not contain them: they may be tokens or passwords.

    Raises:
        RequestError: One is something else.
    """
    for number, url in enumerate(urls, 1):
        if not isinstance(url, str):
            shown = repr(url) if isinstance(url, numbers.Number) else f"of type {type(url).__name__}"
            raise RequestError(f"a URL is {shown}, expected a string; pass several URLs as connect(*urls)")
        if not SERVER_SCHEME.match(url) and not HOST_PORT.fullmatch(url):
            which = "the URL" if len(urls) == 1 else f"the URL number {number}"
            raise RequestError(
                f"{which} is invalid, expected HOST:PORT, grpc://HOST:PORT, grpc+tls://HOST:PORT or unix:/PATH; it is not shown, because it may "
                "be a token, which is passed as token=..."
            )


def check_options(options: Mapping[str, Any]) -> None:
    """Checks the types of options of `connect` by the ends of their names.

    Raises:
        RequestError: One has another type.
    """
    for name, value in options.items():
        if name.endswith(("_deadline", "_timeout", "_interval")):
            number(name, value, "a number of seconds")
        elif name.endswith(("_bytes", "_batches", "max_in_flight")):
            whole_number(name, value)
        elif name in ("verify_hash", "report"):
            if not isinstance(value, (bool, np.bool_)):
                raise RequestError(f"{name} is {value!r}, expected True or False")
        elif name in SECRET:
            _secret(name, value)
        elif not hasattr(value, "__fspath__"):
            text(name, value)


def _secret(name: str, value: Any) -> None:
    is_path = name != "token" and hasattr(value, "__fspath__")
    if not isinstance(value, str) and not is_path:
        raise RequestError(f"{name} is of type {type(value).__name__}, expected a string")
    if name in PEM_FILES and isinstance(value, str) and PEM_START in value:
        raise RequestError(f"{name} is the content of a PEM file, expected the path of the file")
    if name != "token" and isinstance(value, str) and not os.path.exists(value) and not _looks_like_path(value):
        expected = "the path of a file with the token; a token is passed as token=..." if name == "token_file" else "the path of a PEM file"
        raise RequestError(f"{name} names no file, and is not shown, because it may be the secret itself; expected {expected}")


def _looks_like_path(text: str) -> bool:
    """Returns true for an absolute path, and for one in another folder that exists. Errors of the native client contain it."""
    folder = os.path.dirname(text)
    return os.path.isabs(text) or (folder != "" and os.path.isdir(folder))


def size(name: str, value: Any) -> str | int | None:
    """Returns a size as a string or a number of bytes, or None.

    Raises:
        RequestError: The value is something else.
    """
    if value is None or isinstance(value, str):
        return value
    try:
        return whole_number(name, value)
    except RequestError:
        raise RequestError(f"{name} is {value!r}, expected a number of bytes, or a string such as '8GiB'") from None


def texts(name: str, value: Any) -> list[str] | None:
    """Returns a list of strings, or None. A single string becomes a list.

    Raises:
        RequestError: The value is something else.
    """
    if value is None or isinstance(value, str):
        return None if value is None else [value]
    listed = list(value) if isinstance(value, Sequence) or hasattr(value, "__iter__") else [value]
    for each in listed:
        if not isinstance(each, str):
            raise RequestError(f"{name} has {each!r}, expected strings")
    return [str(each) for each in listed]


def tensors(name: str, value: Any, name_field: str) -> list[dict[str, Any]] | None:
    """Returns tensors in the form of the protocol: a list of messages, each with the name of its tensor.

    Args:
        name: Name of the argument.
        value: A dict from the name of a tensor to a column, to a list of columns or to a dict with its fields; or the messages.
        name_field: Field of the name of a tensor in its message.

    Raises:
        RequestError: The value is something else.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        messages = [] if isinstance(value, str) else list(value)
        if isinstance(value, str) or not all(isinstance(message, Mapping) for message in messages):
            raise RequestError(f"{name} is {value!r}, expected a dict of columns by the name of the tensor, such as {{'x': ['a', 'b']}}")
        return [_tensor(message) for message in messages]
    return [
        _tensor({name_field: _name_of_tensor(name, tensor), **(what if isinstance(what, Mapping) else {"columns": texts(f"{name}[{tensor!r}]", what)})})
        for tensor, what in value.items()
    ]


def _name_of_tensor(name: str, tensor: Any) -> str:
    if not isinstance(tensor, str):
        raise RequestError(f"{name} has the key {tensor!r}, expected the name of a tensor")
    return tensor


def _tensor(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the message of a tensor with the name of its `dtype`, which may be a type of NumPy, PyTorch or JAX."""
    dtype = message.get("dtype")
    if dtype is None or isinstance(dtype, str):
        return dict(message)
    if dtype in (bool, int, float):
        raise RequestError(f"dtype is {dtype.__name__}, which has no width; expected the name of a type, such as 'float32' or 'int64'")
    if isinstance(dtype, np.dtype) or (isinstance(dtype, type) and issubclass(dtype, np.generic)):
        named = np.dtype(dtype).name
    else:
        # A type of PyTorch, such as torch.bfloat16, or of JAX, such as jnp.float32.
        named = getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2]
    return {**message, "dtype": named}


def path_or_url(name: str, value: Any) -> str:
    """Returns a path or a URL as a string.

    Raises:
        TypeError: The value is neither a string nor a path.
    """
    if isinstance(value, str):
        return value
    found = value.__fspath__() if hasattr(value, "__fspath__") else None
    if not isinstance(found, str):
        kind = type(value).__name__
        # Text as bytes may be a URL with a password.
        what = f"a {kind}" if not isinstance(value, (numbers.Number, type(None))) else repr(value)
        raise TypeError(f"{name} is {what}, expected the path or URL of a Parquet file or of a folder of Parquet files")
    return found
