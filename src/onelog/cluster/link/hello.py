"""HELLO: who a node is, what it speaks, and what two nodes agree on.

Rules: the body is eight bytes of magic, then a map in msgpack; fields that this version does not
know are skipped, so that a later one may add some. The pair speaks the highest version that both
know, with the features that both have. Every field has a bound.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from onelog.cluster.link.credit import WINDOW_BYTES_MAX
from onelog.cluster.link.layout import SHAKE_BYTES_MAX, LinkViolation

MAGIC: Final = b"OneLog\x00\x01"
VERSIONS: Final = (1, 1)
"""The lowest and the highest inner version that this release speaks."""
FORWARDING: Final = 1
"""FORWARD and FORWARDED."""
FEATURES: Final = FORWARDING
"""One bit for each feature that this release has beyond its version."""
NONCE_BYTES: Final = 32
TEXT_MAX: Final = 200

Purpose = Literal["live", "bulk"]
"""`live` carries what answers wait for, `bulk` history: answers never wait behind history."""

_NodeId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Version = Annotated[int, Meta(ge=0, le=65535)]


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What each side says first."""

    versions: tuple[_Version, _Version]
    features: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    cluster_id: Annotated[str, Meta(min_length=1, max_length=100)]
    node: _NodeId
    epoch: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    """The revision of the node's registration."""
    data_uuid: Annotated[str, Meta(max_length=100)]
    to: _NodeId
    """The node that the sender means to speak to."""
    purpose: Purpose
    has_secret: bool
    """Whether the sender proves a shared secret, and expects the same."""
    window: Annotated[int, Meta(ge=1, le=WINDOW_BYTES_MAX)]
    """Bytes of batches that the sender takes before it says more."""
    nonce: Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class Sender(msgspec.Struct, frozen=True):
    """Whom a frame came from: the node, as it was registered when its link was made."""

    node: int
    epoch: int


class Bye(msgspec.Struct, frozen=True, kw_only=True):
    """The last frame of a link that ends on purpose."""

    reason: Annotated[str, Meta(max_length=TEXT_MAX)]


class Agreed(msgspec.Struct, frozen=True, kw_only=True):
    """What both sides know after the handshake."""

    peer: Hello
    version: int
    features: int


_hello = msgspec.msgpack.Decoder(Hello)
_bye = msgspec.msgpack.Decoder(Bye)
_encode: Final = msgspec.msgpack.Encoder().encode


def encode_hello(hello: Hello) -> bytes:
    """The body of HELLO."""
    body = MAGIC + _encode(hello)
    assert len(body) <= SHAKE_BYTES_MAX
    return body


def decode_hello(body: bytes) -> Hello:
    """HELLO of a peer. Raises LinkViolation."""
    if not body.startswith(MAGIC):
        raise LinkViolation("the peer is no node of OneLog: its first frame is no HELLO")
    try:
        hello = _hello.decode(memoryview(body)[len(MAGIC) :])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LinkViolation(f"HELLO cannot be read: {error}") from None
    if hello.versions[0] > hello.versions[1]:
        raise LinkViolation(f"HELLO has versions {hello.versions[0]} to {hello.versions[1]}")
    return hello


def encode_bye(reason: str) -> bytes:
    """The body of BYE."""
    return _encode(Bye(reason=reason[:TEXT_MAX]))


def decode_bye(body: bytes) -> Bye:
    """BYE of a peer. Raises LinkViolation."""
    try:
        return _bye.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LinkViolation(f"BYE cannot be read: {error}") from None


def agree(ours: Hello, theirs: Hello) -> Agreed:
    """The version and the features of a pair. Raises LinkViolation if there is no common one."""
    version = min(ours.versions[1], theirs.versions[1])
    if version < max(ours.versions[0], theirs.versions[0]):
        raise LinkViolation(
            f"node {theirs.node} speaks the inner versions {theirs.versions[0]} to"
            f" {theirs.versions[1]}, this node {ours.versions[0]} to {ours.versions[1]}: upgrade"
            " one release at a time"
        )
    return Agreed(peer=theirs, version=version, features=ours.features & theirs.features)
