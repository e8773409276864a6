"""The base class of every table of the configuration, and keys that several protocols share."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the configuration file."""


class ConnectionLimits(Section, frozen=True, kw_only=True):
    """How many connections a protocol accepts, and how long a connection may stall."""

    connections: Annotated[
        int, Meta(ge=0, description="Connections at once; 0: as many as the system allows.")
    ] = 10_000
    connections_per_ip: Annotated[
        int, Meta(ge=0, description="Connections from one address at once; 0: no bound.")
    ] = 0
    connects_per_second: Annotated[
        int,
        Meta(
            ge=0,
            description="New connections per second over all addresses; more are closed at once."
            " 0: no bound.",
        ),
    ] = 0
    write_timeout_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="How long a client may read no byte although bytes wait for it; then "
            "the broker closes the connection.",
        ),
    ] = 30_000
