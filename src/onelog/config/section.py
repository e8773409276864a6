"""What every table of the configuration is, and what those of several protocols have in common."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the configuration file."""


class ConnectionLimits(Section, frozen=True, kw_only=True):
    """How many connections a protocol takes, and for how long one may stand still."""

    connections: Annotated[
        int, Meta(ge=0, description="Connections at once; 0: as many as the system lets.")
    ] = 10_000
    connections_per_ip: Annotated[
        int, Meta(ge=0, description="Connections from one address at once; 0: no bound.")
    ] = 0
    connects_per_second: Annotated[
        int, Meta(ge=0, description="New connections per second; 0: no bound.")
    ] = 0
    write_timeout_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="How long a client may take no bytes at all while some wait for it.",
        ),
    ] = 30_000
