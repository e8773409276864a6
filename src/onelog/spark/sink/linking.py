"""The driver's side of a link: the staged rows of all tasks are shown together, or not at all.

Rules: a request without an answer is sent again; the broker knows what it has linked already
(docs/reference/kafka.md, "The link request").
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from onelog.base.errors import ProtocolViolation, Unavailable
from onelog.kafka_client import Client, Reader, refusal

QUERY_CHARS_MAX: Final = 256
API: Final = 20_000
VERSION: Final = 0
PREFIX: Final = "~link/"
WAIT_S: Final = 10.0
"""How long the broker itself waits for the markers of a link."""


class Member(NamedTuple):
    """The transaction of one task."""

    transactional_id: str
    producer_id: int
    epoch: int


class Batch(NamedTuple):
    """A batch of a query, the unit that is linked."""

    query: str
    number: int
    once: bool = False
    """Whether it is a job's only batch, and not run again."""

    def member_id(self, name: str) -> str:
        """The transactional id of one of its tasks."""
        return f"{PREFIX}{self.query}/{self.number}/{name}"

    def __str__(self) -> str:
        return f"batch {self.number} of query {self.query}"


def link(client: Client, batch: Batch, members: Sequence[Member], *, commit: bool) -> str:
    """Commit the members and mark the batch as done, or abort it; what became of it."""
    body = json.dumps(
        {
            "query": batch.query,
            "batch": batch.number,
            "commit": commit,
            "members": members,
            "once": batch.once,
        }
    )

    def read(reader: Reader) -> str:
        answer = _decode(bytes(reader.rest()))
        code = answer.get("error")
        if code != 0:
            raise refusal(int(code or -1), str(batch), answer.get("message"))
        return str(answer.get("outcome"))

    try:
        return client.call(API, body.encode(), read, version=VERSION, wait_s=WAIT_S)
    except Unavailable as error:
        raise Unavailable(
            f"{batch} could not be linked: {error}. Only a OneLog broker"
            " knows the link request: check the option servers"
        ) from error


def _decode(data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except ValueError as error:
        raise ProtocolViolation(f"the broker's answer to a link is not JSON: {error}") from None
    if not isinstance(answer, dict):
        raise ProtocolViolation("the broker's answer to a link has no fields")
    return answer
