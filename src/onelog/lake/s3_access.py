"""Address and credentials of an S3 store: from options, a file of credentials, the environment.

Rules: the first source that has a value counts, in this order; values that none of them has are
left to the libraries (a role of the machine, `~/.aws`). Key and secret come from the same source.
The driver settles all values when the query begins, so that tasks on other machines and three
libraries use the same. Values are never part of a message.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from onelog.base.errors import ConfigError

REGION_OF_OTHERS = "us-east-1"
"""The region for a store other than Amazon's if none is set; signatures need one."""


class S3Option(NamedTuple):
    """An option under the names by which Arrow, delta-rs, Hadoop and AWS know it."""

    arrow: str
    delta: str
    hadoop: str
    environment: tuple[str, ...]
    in_file: str
    means: str


S3_OPTIONS: Mapping[str, S3Option] = {
    "s3.endpoint": S3Option(
        "endpoint_override",
        "AWS_ENDPOINT_URL",
        "endpoint",
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        "endpoint_url",
        "http(s)://host:port of a store that is not Amazon's",
    ),
    "s3.region": S3Option(
        "region",
        "AWS_REGION",
        "endpoint.region",
        ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "region",
        f"its region; with an endpoint {REGION_OF_OTHERS} unless told",
    ),
    "s3.access-key-id": S3Option(
        "access_key",
        "AWS_ACCESS_KEY_ID",
        "access.key",
        ("AWS_ACCESS_KEY_ID",),
        "aws_access_key_id",
        "access key",
    ),
    "s3.secret-access-key": S3Option(
        "secret_key",
        "AWS_SECRET_ACCESS_KEY",
        "secret.key",
        ("AWS_SECRET_ACCESS_KEY",),
        "aws_secret_access_key",
        "its secret",
    ),
    "s3.session-token": S3Option(
        "session_token",
        "AWS_SESSION_TOKEN",
        "session.token",
        ("AWS_SESSION_TOKEN",),
        "aws_session_token",
        "of keys that are lent for a time",
    ),
}
"""The names are Iceberg's."""
FILE, PROFILE = "s3.credentials-file", "s3.profile-name"
SOURCES = {
    FILE: "a file in the form of ~/.aws/credentials that has them; also endpoint_url and region",
    PROFILE: "which part of that file; default unless told",
}
KEYS = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
Words = dict[str, str]


def s3_access(given: Mapping[str, str], environment: Mapping[str, str]) -> Words:
    """The settings of a store, by the names of `S3_OPTIONS`. Raises ConfigError."""
    for name in given:
        if name not in S3_OPTIONS and name not in SOURCES:
            known = ", ".join([*S3_OPTIONS, *SOURCES])
            raise ConfigError(f"{name} is unknown: one of {known}")
    if PROFILE in given and FILE not in given:
        raise ConfigError(f"{PROFILE} names a section of a file: set {FILE}, too")
    told = {name: text for name, text in given.items() if name in S3_OPTIONS}
    in_file = _from_file(given[FILE], given.get(PROFILE, "default")) if FILE in given else {}
    found = _joined(told, in_file, _from_environment(environment))
    _check(found)
    if "s3.endpoint" in found:
        found.setdefault("s3.region", REGION_OF_OTHERS)
    return found


def _joined(*places: Words) -> Words:
    """The value of the first source that has it; keys from one source only."""
    found: Words = {}
    has_keys = False
    for place in places:
        for name, text in place.items():
            if text and not (name in KEYS and has_keys):
                found.setdefault(name, text)
        has_keys = has_keys or any(name in found for name in KEYS)
    return found


def _from_environment(environment: Mapping[str, str]) -> Words:
    return {
        name: next((environment[one] for one in option.environment if environment.get(one)), "")
        for name, option in S3_OPTIONS.items()
    }


def _from_file(name: str, profile: str) -> Words:
    file = Path(name).expanduser()
    if not file.is_absolute():  # tasks and drivers do not stand in the same directory
        raise ConfigError(f"{FILE}: {name!r} is not the absolute path of a file")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{FILE}: {file}: {error.strerror}") from None
    except (configparser.Error, UnicodeDecodeError):  # its message may quote a line of the file
        raise ConfigError(
            f"{FILE}: {file} is not in the form of ~/.aws/credentials: [{profile}], then lines of"
            " aws_access_key_id = …"
        ) from None
    if not parser.has_section(profile):
        raise ConfigError(
            f"{FILE}: {file} has no part [{profile}], only {', '.join(parser.sections()) or 'none'}"
        )
    return {
        ours: parser.get(profile, option.in_file, fallback="")
        for ours, option in S3_OPTIONS.items()
    }


def _check(found: Words) -> None:
    """Refuse settings that are given only in part."""
    endpoint = found.get("s3.endpoint", "")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"s3.endpoint is {endpoint!r}: it begins with http:// or https://")
    if ("s3.access-key-id" in found) != ("s3.secret-access-key" in found):
        raise ConfigError("s3.access-key-id and s3.secret-access-key belong together: give both")
