"""Parses the master of a session, and checks that it answers.

Rules: a master that does not answer is an error of one line within seconds. Spark itself tries for
minutes and then prints pages of Java. So this module checks everything that can be checked without
Spark.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from onelog.base.errors import ConfigError, Unavailable
from onelog.spark.yarn import resource_managers

LOOK_S: Final = 10.0
CONNECT_PORT: Final = 15002
_LOCAL: Final = re.compile(
    r"local(\[(\*|\d+)(\s*,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
)
_HADOOP: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_FORMS: Final = "local[*], spark://host:7077, k8s://https://host:443, yarn or sc://host:15002"

Address = tuple[str, int]


class Kind(Enum):
    """The kinds of masters; the value is the prefix of the address."""

    LOCAL = "local"
    STANDALONE = "spark://"
    KUBERNETES = "k8s://"
    YARN = "yarn"
    CONNECT = "sc://"


def kind_of(master: str) -> Kind:
    """The kind of a master. Raises ConfigError."""
    for kind in (Kind.STANDALONE, Kind.KUBERNETES, Kind.CONNECT):
        if master.startswith(kind.value):
            return kind
    if master == Kind.YARN.value:
        return Kind.YARN
    if _LOCAL.fullmatch(master):
        return Kind.LOCAL
    raise ConfigError(f"master {master!r} is not a master: use {_FORMS}")


def find_master(master: str, environment: Mapping[str, str] | None = None) -> Kind:
    """The kind of a master, after a check that it answers. Raises ConfigError, Unavailable."""
    kind = kind_of(master)
    if kind is Kind.YARN:
        _find_yarn(os.environ if environment is None else environment)
    elif kind in _ADDRESSES:
        _find_any(master, _ADDRESSES[kind](master))
    return kind


def shown(master: str) -> str:
    """A master without its secrets: an address of Connect may have a token."""
    return master.partition(";")[0]


def _find_yarn(environment: Mapping[str, str]) -> None:
    named = {name: environment[name] for name in _HADOOP if environment.get(name)}
    if not named:
        raise ConfigError(
            f"master yarn: {' or '.join(_HADOOP)} has to name the directory of the cluster's"
            " configuration, and neither is set"
        )
    for name, folder in named.items():
        if not os.path.isdir(folder):  # noqa: PTH112 - a name that is not checked yet
            raise ConfigError(f"master yarn: {name} is {folder}, which is not a directory")
    addresses = [found for folder in named.values() for found in resource_managers(Path(folder))]
    if addresses:
        _find_any("yarn", addresses)


def _find_any(master: str, addresses: list[Address]) -> None:
    """One of several is enough: the others may be asleep."""
    failures = []
    for host, port in addresses:
        try:
            socket.create_connection((host, port), LOOK_S).close()
        except OSError as error:
            failures.append(f"{host}:{port}: {error.strerror or error}")
        else:
            return
    raise Unavailable(f"master {shown(master)}: nobody answers there ({'; '.join(failures)})")


def _standalone(master: str) -> list[Address]:
    texts = master.removeprefix(Kind.STANDALONE.value).split(",")
    return [_address(master, f"spark://{text}", None) for text in texts]


def _kubernetes(master: str) -> list[Address]:
    address = master.removeprefix(Kind.KUBERNETES.value)
    whole = address if "://" in address else f"https://{address}"
    return [_address(master, whole, 80 if whole.startswith("http://") else 443)]


def _connect(master: str) -> list[Address]:
    return [_address(master, master.partition(";")[0], CONNECT_PORT)]


def _address(master: str, text: str, default_port: int | None) -> Address:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port or default_port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ConfigError(f"master {shown(master)!r} has no host and port: use {_FORMS}")
    return host, port


_ADDRESSES: Final[dict[Kind, Callable[[str], list[Address]]]] = {
    Kind.STANDALONE: _standalone,
    Kind.KUBERNETES: _kubernetes,
    Kind.CONNECT: _connect,
}
