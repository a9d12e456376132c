"""Credentials of this process for the object store of a dataset, which `open` passes to the server of the host.

Credentials are read from the environment each time they are passed. They are not written to files, logged or pickled.
"""

from __future__ import annotations

import configparser
import hashlib
import os
import struct
from pathlib import Path
from typing import Callable, Mapping

from forebay.errors import RequestError

# Beginnings of the names of the variables that configure object stores, by scheme.
PREFIXES = {
    **dict.fromkeys(("s3", "s3a"), "AWS_"),
    "gs": "GOOGLE_",
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "adl"), "AZURE_"),
}
# Variables that select a profile. They are not passed: the settings of the profile are passed as the variables of the same meaning.
PROFILE_VARIABLES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")
# Variables of AWS's command line and of programs that export credentials, which have no effect on a store.
OTHER_PROGRAMS = ("AWS_PAGER", "AWS_CLI_", "AWS_DEFAULT_OUTPUT", "AWS_EXECUTION_ENV", "AWS_VAULT", "AWS_SDK_", "AWS_CREDENTIAL_EXPIRATION")
# Settings of profiles whose credentials the server cannot use.
OTHER_CREDENTIALS = ("sso_session", "sso_start_url", "credential_process", "role_arn")
# Variables with the path of a file of credentials.
CREDENTIAL_FILES = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")
# Further variables with the path of a file.
OTHER_FILES = (
    "AWS_CONFIG_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE",
)
# File of credentials of Google's command line, below the home directory.
GOOGLE_DEFAULT = ".config/gcloud/application_default_credentials.json"
# Variables of other programs with a variable that the server knows.
OTHER_NAMES = {"SERVICE_ACCOUNT": "GOOGLE_SERVICE_ACCOUNT", "IDENTITY_ENDPOINT": "AZURE_MSI_ENDPOINT"}
MAX_FILE_BYTES = 1 << 20
# First bytes of the text that a proof hashes.
PROOF_DOMAIN = b"forebay credentials 1\n"


def credentials_for(url: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the credentials and settings for the store of a URL; an empty dict if it needs none.

    Args:
        url: Path or URL.
        environment: Environment of the process.

    Raises:
        RequestError: `AWS_PROFILE` names a profile that does not exist, or whose credentials the server cannot use.
    """
    prefix = PREFIXES.get(url.partition("://")[0].lower())
    return {} if prefix is None else _of_store(prefix, environment)


def bearer_of(url: str, given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> str:
    """Returns the bearer token that shows which credentials this process has; an empty string if it has none.

    Args:
        url: Path or URL.
        given: Credentials for the URL.
        environment: Environment of the process.
    """
    held = [given]
    # A training can mix datasets of several stores.
    for prefix in sorted({*PREFIXES.values()} - {PREFIXES.get(url.partition("://")[0].lower())}):
        try:
            held.append(_of_store(prefix, environment))
        except RequestError:
            # The dataset of this URL does not need them.
            pass
    return ".".join(proof(each) for each in held if each)


def with_absolute_paths(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns variables with absolute paths of files of credentials. The server runs in the root folder."""
    return {
        name: os.path.abspath(value) if value and name in (*CREDENTIAL_FILES, *OTHER_FILES) else value for name, value in variables.items()
    }


def proof(credentials: Mapping[str, str]) -> str:
    """Returns a hash that only a process with all of the credentials can compute. The server computes the same one."""
    found = hashlib.sha256(PROOF_DOMAIN)
    for name in sorted(credentials, key=str.encode):
        for text in (name.encode(), credentials[name].encode()):
            found.update(struct.pack("<Q", len(text)) + text)
    return found.hexdigest()


def _of_store(prefix: str, environment: Mapping[str, str]) -> dict[str, str]:
    add: Callable[[dict[str, str], Mapping[str, str]], None] = {"AWS_": _add_profile, "GOOGLE_": _add_files, "AZURE_": _add_home}[prefix]
    others = {known: environment[name] for name, known in OTHER_NAMES.items() if name in environment and known.startswith(prefix)}
    variables = {
        name: value
        for name, value in environment.items()
        if name.startswith(prefix) and name not in PROFILE_VARIABLES and not name.startswith(OTHER_PROGRAMS)
    }
    found = {**others, **variables}
    add(found, environment)
    # A value that is not valid text cannot be passed, and has no effect on a store.
    return with_absolute_paths({name: value for name, value in found.items() if _is_text(value)})


def _add_profile(found: dict[str, str], environment: Mapping[str, str]) -> None:
    """Adds the settings of the AWS profile that the environment selects, which is `default` if it selects none."""
    selected = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE")
    name, home = selected or "default", environment.get("HOME")
    paths: list[Path] = []
    profile: dict[str, str] | None = None
    for variable, usual, section in (
        ("AWS_CONFIG_FILE", "config", f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        given = environment.get(variable)
        if not given and not home:
            continue
        path = Path(given or os.path.join(str(home), ".aws", usual))
        paths.append(path)
        sections = _sections(path)
        # In both files the section of the default profile may lack the prefix.
        for each in dict.fromkeys((section, "default") if name == "default" else (section,)):
            if each in sections:
                profile = {**(profile or {}), **sections[each]}
    if selected and profile is None:
        raise RequestError(f"there is no AWS profile '{name}' in {' and '.join(map(str, paths))}")
    profile = profile or {}
    if "AWS_ACCESS_KEY_ID" not in found:
        if "aws_access_key_id" in profile and "aws_secret_access_key" in profile:
            keys = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
            found.update({setting.upper(): profile[setting] for setting in keys if setting in profile})
        elif selected and (other := next((each for each in OTHER_CREDENTIALS if each in profile), None)):
            raise RequestError(
                f"the AWS profile '{name}' has {other}, which is not supported; export its credentials with "
                f"`aws configure export-credentials --profile {name} --format env`"
            )
    if "region" in profile and not found.keys() & {"AWS_REGION", "AWS_DEFAULT_REGION"}:
        found["AWS_REGION"] = profile["region"]
    if "endpoint_url" in profile and not found.keys() & {"AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"}:
        found["AWS_ENDPOINT_URL"] = profile["endpoint_url"]


def _sections(path: Path) -> dict[str, dict[str, str]]:
    """Returns the sections of a file of profiles; none if it can't be read."""
    parser = configparser.RawConfigParser(
        default_section="", strict=False, delimiters=("=",), comment_prefixes=("#", ";"), allow_no_value=True
    )
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return {}
        parser.read_string(path.read_text())
    except (OSError, ValueError, configparser.Error):
        return {}
    return {" ".join(name.split()): {key: value for key, value in parser.items(name) if value} for name in parser.sections()}


def _add_files(found: dict[str, str], environment: Mapping[str, str]) -> None:
    """Adds hashes of the files of credentials, so that another file at the same path is other credentials."""
    usual = Path(environment.get("HOME", ""), GOOGLE_DEFAULT)
    if not any(name in found for name in (*CREDENTIAL_FILES, "GOOGLE_SERVICE_ACCOUNT_KEY")) and usual.is_absolute() and usual.exists():
        found["GOOGLE_APPLICATION_CREDENTIALS"] = str(usual)
    for name in CREDENTIAL_FILES:
        if name in found:
            try:
                found[name] = os.path.abspath(found[name])
                found[f"{name}_SHA256"] = hashlib.sha256(Path(found[name]).read_bytes()).hexdigest()
            except OSError:
                # The error of the server names the file.
                pass


def _add_home(found: dict[str, str], environment: Mapping[str, str]) -> None:
    """Adds the home directory for Azure's command line, whose credentials are in it."""
    if "AZURE_USE_AZURE_CLI" in found and "HOME" in environment:
        found["HOME"] = environment["HOME"]


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
