"""The messages of etcd's JSON gateway that the store uses, and what its refusals mean.

Rules:
- Keys and values are base64, as msgspec writes bytes; 64-bit numbers come as text.
- A refusal is one of the errors of `metadata/store.py`. Only refusals that are known to have
  changed nothing say so. Whatever else ends a mutation leaves its outcome unknown.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, Literal, TypeVar

import msgspec

from onelog.base.errors import (
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OffsetOutOfRange,
    OnelogError,
    OutcomeUnknown,
    Unavailable,
)
from onelog.metadata.store import Compare, Delete, Entry, Op, Put

T = TypeVar("T")


class Header(msgspec.Struct, frozen=True):
    """What stands before each answer."""

    cluster_id: int = 0
    member_id: int = 0
    revision: int = 0


class KeyValue(msgspec.Struct, frozen=True):
    """One key."""

    key: bytes
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    version: int = 0
    lease: int = 0


class RangeAnswer(msgspec.Struct, frozen=True):
    """Keys in order."""

    header: Header
    kvs: tuple[KeyValue, ...] = ()
    more: bool = False


class Deleted(msgspec.Struct, frozen=True):
    """How many keys a deletion took."""

    deleted: int = 0


class OpAnswer(msgspec.Struct, frozen=True):
    """What one operation of a transaction did."""

    response_delete_range: Deleted | None = None


class TxnAnswer(msgspec.Struct, frozen=True):
    """A transaction that was made."""

    header: Header
    succeeded: bool = False
    responses: tuple[OpAnswer, ...] = ()


class LeaseAnswer(msgspec.Struct, frozen=True):
    """A lease; without a TTL it does not exist."""

    header: Header
    ID: int = 0
    TTL: int = 0


class LeaseLine(msgspec.Struct, frozen=True):
    """The first line of the stream that a keep-alive is."""

    result: LeaseAnswer | None = None
    error: Refusal | None = None

    @property
    def header(self) -> Header:
        """The header of the answer."""
        return Header() if self.result is None else self.result.header


class LoginAnswer(msgspec.Struct, frozen=True):
    """A login."""

    token: str = ""


class StatusAnswer(msgspec.Struct, frozen=True):
    """What a member says about itself."""

    header: Header
    version: str
    leader: int = 0
    dbSize: int = 0


class Refusal(msgspec.Struct, frozen=True):
    """Why a request failed: the code is that of gRPC."""

    message: str = ""
    code: int = 0
    grpc_code: int = 0
    """Instead of `code`, in a stream of etcd 3.4 and 3.5."""

    @property
    def number(self) -> int:
        """The code."""
        return self.code or self.grpc_code or Code.UNKNOWN


class WatchedEvent(msgspec.Struct, frozen=True):
    """One change of a key; no type: it was written."""

    kv: KeyValue
    type: Literal["PUT", "DELETE"] = "PUT"
    prev_kv: KeyValue | None = None


class WatchFrame(msgspec.Struct, frozen=True):
    """A frame of a watch."""

    header: Header = Header()
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    events: tuple[WatchedEvent, ...] = ()
    fragment: bool = False


class WatchLine(msgspec.Struct, frozen=True):
    """A line of a watch: a frame, or the error that ends it."""

    result: WatchFrame | None = None
    error: Refusal | None = None


class WrongBytes(Exception):
    """Bytes that are no answer of etcd."""


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode(kind: type[T], data: bytes) -> T:
    """An answer. Raises WrongBytes."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind, strict=False)
    try:
        found = decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WrongBytes(f"{data[:80]!r} is no answer of etcd: {error}") from None
    assert isinstance(found, kind)
    return found


# -- requests

_COMPARE_TARGETS: Final = {
    "value": "VALUE",
    "version": "VERSION",
    "create_revision": "CREATE",
    "mod_revision": "MOD",
}
_COMPARE_RESULTS: Final = {"==": "EQUAL", "!=": "NOT_EQUAL", "<": "LESS", ">": "GREATER"}


def range_end(prefix: bytes) -> bytes:
    """The first key after all that start with a prefix, which ends in a byte of UTF-8."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def compare_of(compare: Compare, prefix: str) -> dict[str, object]:
    """A compare as the gateway takes it."""
    return {
        "key": (prefix + compare.key).encode(),
        "target": _COMPARE_TARGETS[compare.target],
        "result": _COMPARE_RESULTS[compare.op],
        compare.target: compare.operand,
    }


def request_of(op: Op, prefix: str) -> dict[str, object]:
    """An operation as the gateway takes it."""
    key = (prefix + op.key).encode()
    if isinstance(op, Put):
        return {"request_put": {"key": key, "value": op.value, "lease": op.lease}}
    assert isinstance(op, Delete)
    if op.prefix:
        return {"request_delete_range": {"key": key, "range_end": range_end(key)}}
    return {"request_delete_range": {"key": key}}


def entry_of(found: KeyValue, prefix_bytes: int) -> Entry:
    """A key as stores give it. Raises WrongBytes."""
    try:
        key = found.key[prefix_bytes:].decode()
    except UnicodeDecodeError:
        raise WrongBytes(f"the key {found.key!r} is not UTF-8 text") from None
    return Entry(
        key=key,
        value=found.value,
        create_revision=found.create_revision,
        mod_revision=found.mod_revision,
        version=found.version,
        lease=found.lease,
    )


# -- refusals


class Code(IntEnum):
    """The codes of gRPC that mean something here."""

    UNKNOWN = 2
    INVALID = 3
    NOT_FOUND = 5
    NO_RIGHT = 7
    EXHAUSTED = 8
    PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


NO_LEADER: Final = "etcdserver: no leader"
NO_LOGIN: Final = "etcdserver: user name is empty"
"""etcd has logins, and this node showed none."""
LEARNER: Final = "etcdserver: rpc not supported for learner"
"""A member that still copies, and takes no part yet."""
_CHANGED_NOTHING: Final = frozenset({NO_LEADER, LEARNER, "etcdserver: not capable"})
"""Refusals of the code "unavailable" that come before anything is done."""
_LIMITS: Final = ("too large", "larger than max", "too many operations")


def may_ask_another(refusal: Refusal) -> bool:
    """Whether this member refused before it did anything, and another one may not."""
    return refusal.number == Code.UNAVAILABLE and refusal.message in _CHANGED_NOTHING


def is_stale_login(refusal: Refusal) -> bool:
    """Whether a new login may help: etcd forgot this one, or rights changed since."""
    return refusal.number == Code.UNAUTHENTICATED or "auth store is old" in refusal.message


_SURELY: Final[dict[int, type[OnelogError]]] = {
    Code.INVALID: InvalidRequest,
    Code.NOT_FOUND: NotFound,
    Code.NO_RIGHT: Unavailable,
    Code.EXHAUSTED: Unavailable,
    Code.PRECONDITION: Unavailable,
    Code.OUT_OF_RANGE: OffsetOutOfRange,
    Code.UNIMPLEMENTED: Unavailable,
    Code.UNAUTHENTICATED: Unavailable,
}
"""Refusals that surely changed nothing."""
_HINTS: Final = {
    Code.NO_RIGHT: "; give this node rights to its prefix (cluster.etcd.user, password_file)",
    Code.UNAUTHENTICATED: "; this node needs a login (cluster.etcd.user, password_file)",
}


def error_of(refusal: Refusal, endpoint: object) -> OnelogError:
    """What a refusal of a mutation means."""
    number = refusal.number
    text = f"etcd at {endpoint} says: {refusal.message[:300] or number}"
    if any(words in refusal.message for words in _LIMITS):
        return LimitExceeded(text)
    if refusal.message == NO_LOGIN:
        return Unavailable(text + _HINTS[Code.UNAUTHENTICATED])
    if "database space exceeded" in refusal.message:
        text += (
            "; it writes nothing until somebody compacts and defragments it, and disarms the"
            " alarm (etcdctl alarm disarm)"
        )
    if number in _SURELY:
        return _SURELY[number](text + _HINTS.get(Code(number), ""))
    if may_ask_another(refusal):
        return Unavailable(text)
    return OutcomeUnknown(f"{text}; whether the change was made is not known")
