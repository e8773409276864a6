"""Linked transactions: many that are decided together, once, in the name of a query's batch.

A task of a Spark query writes in a transaction of its own and leaves it open; the query's driver
then links all of them. The transactional id of such a transaction has this form, and is used once:

    ~link/<query>/<batch>/<name of the task>

Rules:
- The mark of a query is the last batch that was linked. It and the outcome of all members are rows
  of one append, so after a crash all of them are there or none (`Coordinator.link`).
- A batch at or below the mark is in the log already: new transactions for it are aborted.
- Marks are bounded. A mark that is needed once (of a job that is not run again) is dropped first.
  When only others are left, a new query is refused, because without its mark a repeated batch would
  be written twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from onelog.protocols.kafka.errors import ErrorCode, KafkaError

PREFIX: Final = "~link/"
QUERY_CHARS_MAX: Final = 256
NO_BATCH: Final = -1
BATCH_MAX: Final = 2**63 - 1
_BATCH_DIGITS_MAX: Final = len(str(BATCH_MAX))
_PARTS: Final = 3

_MARK_KEY: Final = b"\xff"
"""The prefix of the key of a mark's row. No transactional id has it, because it is not UTF-8."""

Outcome = Literal["linked", "already", "aborted"]


class LinkedMember(NamedTuple):
    """The parts of the transactional id of a linked transaction."""

    query: str
    batch: int


def member_of(transactional_id: str) -> LinkedMember | None:
    """The parts of an id; None for the ids of other clients."""
    if not transactional_id.startswith(PREFIX):
        return None
    parts = transactional_id[len(PREFIX) :].split("/", _PARTS - 1)
    if len(parts) == _PARTS:
        query, batch, name = parts
        is_number = batch.isascii() and batch.isdigit() and len(batch) <= _BATCH_DIGITS_MAX
        if 0 < len(query) <= QUERY_CHARS_MAX and name and is_number and int(batch) <= BATCH_MAX:
            return LinkedMember(query, int(batch))
    return None


def batch_of(query: str, batch: int) -> str:
    """What the transactional ids of a batch begin with: rules are asked about it, too."""
    return f"{PREFIX}{query}/{batch}/"


def check_id(transactional_id: str) -> None:
    """Refuse an id that has the prefix of a linked transaction but not its form. Raises
    KafkaError."""
    if transactional_id.startswith(PREFIX) and member_of(transactional_id) is None:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"transactional ids that begin with {PREFIX} are {PREFIX}query/batch/name, where query"
            f" has at most {QUERY_CHARS_MAX} characters and batch is a number;"
            f" not {transactional_id!r}",
        )


class QueryMark(msgspec.Struct, frozen=True, array_like=True):
    """The mark of a query: its last linked batch."""

    batch: int
    owner: str
    """The user that owns the query: no other user may move the mark."""
    updated_ms: int
    once: bool = False
    """For a job that is not run again: needed only while its driver may ask again."""


class LinkRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The request of a driver."""

    query: Annotated[str, Meta(min_length=1, max_length=QUERY_CHARS_MAX, pattern=r"^[^/]+$")]
    batch: Annotated[int, Meta(ge=0, le=BATCH_MAX)]
    commit: bool
    members: Annotated[list[tuple[str, int, int]], Meta(max_length=10_000)]
    """Transactional id, producer id and epoch of each."""
    once: bool = False


def key_of(query: str) -> bytes:
    """The key of a mark's row."""
    return _MARK_KEY + query.encode()


def query_of(key: bytes) -> str | None:
    """The query of a mark's row; None for the row of a transactional id. Raises
    UnicodeDecodeError."""
    return key[1:].decode() if key.startswith(_MARK_KEY) else None


def name_of(key: bytes) -> bytes:
    """The name that a row belongs to: the transactions of a query lie together with its mark."""
    query = query_of(key)
    if query is None:
        member = member_of(key.decode())
        query = None if member is None else member.query
    return key if query is None else query.encode()


def encode(mark: QueryMark) -> bytes:
    """A row's value."""
    return msgspec.msgpack.encode(mark)


def decode(value: bytes) -> QueryMark:
    """The mark of a row. Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(value, type=QueryMark)


class QueryMarks:
    """The marks of all queries, in the order of their last change."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._rows: dict[str, QueryMark] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def fill(self, rows: Iterable[tuple[str, QueryMark]]) -> None:
        """Take recovered rows."""
        known = [*self._rows.items(), *rows]
        self._rows = dict(sorted(known, key=lambda row: row[1].updated_ms))

    def batch(self, query: str) -> int:
        """The last batch that was linked; NO_BATCH: none was."""
        mark = self._rows.get(query)
        return NO_BATCH if mark is None else mark.batch

    def check_owner(self, query: str, owner: str) -> None:
        """Refuse a user that does not own the query."""
        mark = self._rows.get(query)
        if mark is not None and mark.owner != owner:
            raise KafkaError(
                ErrorCode.transactional_id_authorization_failed,
                f"the query {query} belongs to another user than {owner}; log in as the user that"
                " linked its first batch, or begin a new query (a new checkpoint)",
            )

    def room_for(self, query: str) -> list[str]:
        """The marks that must be dropped to keep this one. Raises KafkaError."""
        if query in self._rows or len(self._rows) < self._count_max:
            return []
        oldest = next((name for name, mark in self._rows.items() if mark.once), None)
        if oldest is None:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"{self._count_max} queries have linked batches; there is no room for {query}"
                " (kafka.transactions.marks)",
            )
        return [oldest]

    def put(self, query: str, mark: QueryMark) -> None:
        """Set a mark; it moves to the end."""
        self._rows.pop(query, None)
        self._rows[query] = mark

    def drop(self, queries: Iterable[str]) -> None:
        """Forget marks."""
        for query in queries:
            self._rows.pop(query, None)

    def unused(self, before_ms: int, before_once_ms: int, count_max: int) -> list[str]:
        """Queries that have linked nothing since then."""
        found: list[str] = []
        for query, mark in self._rows.items():
            if len(found) == count_max:
                break
            if mark.updated_ms < (before_once_ms if mark.once else before_ms):
                found.append(query)
        return found
