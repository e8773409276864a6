"""Claims: reserved headers that say more of a record than the right to its topic gives.

Rules:
- Any Kafka producer can write a reserved header, because its batch is stored as it came (ADR 13).
  Four of them say where a record goes, or who sent it. While there are access rules, each is judged
  as its producer, before the batch is stored (ADR 26). So readers need not know who wrote it.
- A further key (`~bc`) needs *publish* on its topic, as a publish with that key does. A queue that
  is left out (`~nq`) needs *consume* on that queue: who has it could take the message away, too.
  A publisher (`~nl`), whose own subscriptions may not get the message, needs *consume* on the
  session of that client. A user (`~ui`) is the producer itself, as in AMQP; who copies messages of
  others needs *admin* on `server:impersonation`.
- A value that does not parse counts as absent, as for readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from onelog.base.errors import InvalidName, InvalidRecords, NotAuthorized
from onelog.base.limits import CLAIMS_PER_BATCH_MAX
from onelog.broker import Action, Authorizer, Kind, Principal
from onelog.kernel import find_headers
from onelog.queues.addresses import address_of, message_topic, queue_cursor
from onelog.record.headers import BLIND_KEYS, LEFT_OUT, PUBLISHER, USER_ID
from onelog.record.reserved import parse_names, parse_text

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer

IMPERSONATION: Final = "impersonation"
"""What rules call the right to name another user."""

_HEADERS: Final = (BLIND_KEYS, LEFT_OUT, PUBLISHER, USER_ID)
_LISTS: Final = (BLIND_KEYS, LEFT_OUT)

Claims = dict[tuple[bytes, bytes | None], int]
"""(header, value) → the first record that has it."""
NO_CLAIMS: Final[Claims] = {}


def find_claims(data: Buffer, position: int, records: bytes | None = None) -> Claims:
    """The claims of a checked batch; `records` holds its inflated records, if it is compressed."""
    return find_headers(data, position, records, _HEADERS, CLAIMS_PER_BATCH_MAX + 1)


def refused_claim(
    authorizer: Authorizer, principal: Principal, topic: str, claims: Claims
) -> tuple[int, str] | None:
    """The first record of a topic with a claim that the principal has no right to, and why.

    Raises InvalidRecords when there are too many to judge.
    """
    if len(claims) > CLAIMS_PER_BATCH_MAX:
        raise _too_many()
    known: dict[tuple[bytes, str], int] = {}
    for (header, value), index in claims.items():
        for name in _names(header, value):
            known.setdefault((header, name), index)
            if len(known) > CLAIMS_PER_BATCH_MAX:
                raise _too_many()
    for (header, name), index in known.items():
        needed = _needed(authorizer, principal, topic, header, name)
        if needed:
            said = f"its header {header.decode()} names {name[:100]!r}"
            return index, f"{said}, for which {principal.name} needs {needed}"
    return None


def check_further_keys(
    authorizer: Authorizer, principal: Principal, vhost: str, exchange: str, keys: tuple[str, ...]
) -> None:
    """Raise NotAuthorized unless a publish may go to these further keys, too.

    The door knows the message's own topic only: queues get it by these keys from the same record.
    """
    for key in keys:
        topic = message_topic(vhost, exchange, key)
        if not authorizer.allows(principal, Action.PUBLISH, topic):
            raise NotAuthorized(f"{principal.name} may not publish to {topic}")


def _too_many() -> InvalidRecords:
    return InvalidRecords(
        f"while there are access rules, the reserved headers of a batch name"
        f" {CLAIMS_PER_BATCH_MAX} keys, queues, clients and users at most; send smaller batches"
    )


def _names(header: bytes, value: bytes | None) -> Iterator[str]:
    if header in _LISTS:
        yield from parse_names(value)
    elif text := parse_text(value):
        yield text


def _needed(
    authorizer: Authorizer, principal: Principal, topic: str, header: bytes, name: str
) -> str:
    """The right that a principal lacks for a claim; empty: it may claim that."""
    if header == BLIND_KEYS:
        address = address_of(topic)
        try:
            action, resource = Action.PUBLISH, message_topic(*address[:2], name)
        except (InvalidName, UnicodeError):
            return "a key that is a topic"
        kind = Kind.TOPIC
    elif header == USER_ID:
        if name == principal.name:
            return ""
        action, resource, kind = Action.ADMIN, IMPERSONATION, Kind.SERVER
    else:
        action, kind = Action.CONSUME, Kind.CURSOR
        is_queue = header == LEFT_OUT
        resource = queue_cursor(address_of(topic).vhost, name) if is_queue else f"session/{name}"
    if authorizer.allows(principal, action, resource, kind):
        return ""
    return f"the right to {action} on {kind}:{resource}"
