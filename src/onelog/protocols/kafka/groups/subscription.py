"""The topics that the members of a consumer group read, from their subscriptions.

The metadata of other protocol types is opaque; so is a subscription that cannot be read.
"""

from __future__ import annotations

import struct

from onelog.protocols.kafka.groups.group import Group
from onelog.protocols.kafka.groups.states import State

CONSUMER = "consumer"
"""The protocol type whose metadata is a subscription."""

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(group: Group) -> set[str] | None:
    """The topics that a stable consumer group reads; None: that is not known."""
    if group.protocol_type != CONSUMER or group.state is not State.STABLE:
        return None
    found: set[str] = set()
    for member in group.members:
        try:
            found |= _topics(member.metadata(group.protocol))
        except (struct.error, UnicodeDecodeError, IndexError):
            return None
    return found


def _topics(metadata: bytes) -> set[str]:
    _version, count = _HEAD.unpack_from(metadata, 0)
    at = _HEAD.size
    found = set()
    for _ in range(count):  # each one takes bytes, so the loop ends with them
        (length,) = _LENGTH.unpack_from(metadata, at)
        at += _LENGTH.size
        if length < 0 or at + length > len(metadata):
            raise IndexError("the subscription is cut")
        found.add(metadata[at : at + length].decode())
        at += length
    return found
