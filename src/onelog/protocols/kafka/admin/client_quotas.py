"""DescribeClientQuotas and AlterClientQuotas: the quotas of users, clients and addresses.

Rules:
- Kafka's names of limits are the ones of `_NAMES`. The limits that Kafka does not have go by our
  own names, in both directions. A share of the broker's threads (`request_percentage`) and
  `controller_mutation_rate` are not kept here, and are refused.
- Quotas of listeners are ours only: Kafka's tools neither see nor change them.
- To see quotas a client needs the right to see the server, to change them *admin* on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import InvalidName, InvalidRequest, LimitExceeded, OnelogError
from onelog.protocols.kafka.admin.resources import check_cluster, check_keeper
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.turns import RequestTurns
from onelog.security.quotas.entities import (
    DEFAULT,
    Limit,
    QuotaEntity,
    QuotaRow,
    check_entity,
    check_limits,
)

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

PART: Final = "quotas"
_PARTS: Final = {"user": "user", "client-id": "client", "ip": "ip"}
"""Kafka's types of entities, and ours."""
_TYPES: Final = {part: name for name, part in _PARTS.items()}
_NAMES: Final = {
    "producer_byte_rate": Limit.PUBLISH_BYTES,
    "consumer_byte_rate": Limit.FETCH_BYTES,
    "connection_creation_rate": Limit.CONNECTS,
}
_KAFKA_NAMES: Final = {limit: name for name, limit in _NAMES.items()}
_NOT_KEPT: Final = frozenset({"request_percentage", "controller_mutation_rate"})
_EXACT, _DEFAULT, _ANY = 0, 1, 2


def _refused(text: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, text)


def _part(entity_type: str) -> str:
    found = _PARTS.get(entity_type)
    if found is None:
        raise _refused(f"{entity_type[:80]!r} is no type of entity: use {', '.join(_PARTS)}")
    return found


# -- describing


async def describe_client_quotas(hub: Hub, request: Request) -> Body:
    """The quotas that a filter chooses."""
    try:
        check_cluster(hub, request, PART, to_see=True)
        wanted = _filter(request.body.components)
    except OnelogError as error:
        return {"error_code": code_of(error), "error_message": str(error), "entries": None}
    rows = [row for row in hub.broker.client_quotas.rows if row.entity.listener is None]
    strict = bool(request.body.strict)
    entries = [
        _entry(row)
        async for row in RequestTurns().timed(rows)
        if _matches(dict(row.entity.parts), wanted, strict=strict)
    ]
    return {"error_code": ErrorCode.none, "error_message": None, "entries": entries}


def _filter(components: Iterable[Any]) -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    for row in components:
        part = _part(row.entity_type)
        if part in found:
            raise _refused(f"the filter names {row.entity_type} more than once")
        if row.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise _refused(f"there is no match type {row.match_type}")
        if bool(row.match) != (row.match_type == _EXACT):
            raise _refused("a name goes with an exact match, and with no other")
        found[part] = int(row.match_type), row.match or DEFAULT
    if "ip" in found and len(found) > 1:
        raise _refused("an address is not combined with a user or a client")
    return found


def _matches(parts: dict[str, str], wanted: dict[str, tuple[int, str]], *, strict: bool) -> bool:
    if strict and parts.keys() - wanted.keys():
        return False
    for part, (how, name) in wanted.items():
        found = parts.get(part)
        if found is None or (how == _EXACT and found != name):
            return False
        if how == _DEFAULT and found != DEFAULT:
            return False
    return True


def _entry(row: QuotaRow) -> Body:
    return {
        "entity": [
            {"entity_type": _TYPES[part], "entity_name": name or None}
            for part, name in row.entity.parts
        ],
        "values": [
            {"key": _KAFKA_NAMES.get(limit, limit.value), "value": value}
            for limit, value in sorted(row.limits.items())
        ],
    }


# -- altering


async def alter_client_quotas(hub: Hub, request: Request) -> Body:
    """Set or remove limits; each entity succeeds or fails alone."""
    entries = []
    validate_only = bool(request.body.validate_only)
    async for row in RequestTurns().over(request.body.entries):
        told: Body = {"error_code": ErrorCode.none, "error_message": None}
        try:
            check_keeper(hub, request, PART)
            await _alter(hub, row, validate_only=validate_only)
        except OnelogError as error:
            told = {"error_code": _code(error), "error_message": str(error)}
        entity = [
            {"entity_type": part.entity_type, "entity_name": part.entity_name}
            for part in row.entity
        ]
        entries.append(told | {"entity": entity})
    return {"entries": entries}


def _code(error: OnelogError) -> ErrorCode:
    # The name of an entity is no topic, whose errors these would be.
    wrong = isinstance(error, InvalidName | InvalidRequest | LimitExceeded)
    return ErrorCode.invalid_request if wrong else code_of(error)


async def _alter(hub: Hub, row: Any, *, validate_only: bool) -> None:
    parts: dict[str, str] = {}
    for part in row.entity:
        name = _part(part.entity_type)
        if name in parts:
            raise _refused(f"the entity names {part.entity_type} more than once")
        if part.entity_name == "":
            raise _refused("the default is named by null, not by an empty name")
        parts[name] = part.entity_name or DEFAULT
    entity = check_entity(QuotaEntity(**parts))
    limits: dict[str, float] = {}
    drop: list[str] = []
    for op in row.ops:
        key = op.key
        if key in _NOT_KEPT:
            raise _refused(f"{key} is not kept here; `requests` bounds requests per second")
        name = _NAMES.get(key, key)
        if name in limits or name in drop:
            raise _refused(f"{key[:80]} is named more than once")
        if op.remove:
            drop.append(name)
        else:
            limits[name] = float(op.value)
    check_limits(entity, limits)
    check_limits(entity, dict.fromkeys(drop, 1))
    if not validate_only:
        await hub.broker.client_quotas.change(entity, limits, drop)
