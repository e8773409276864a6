"""The states of a connection."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """How far a connection is."""

    HEADER = "header"
    HANDSHAKE = "handshake"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
