"""ListTransactions, DescribeTransactions and DescribeProducers: open transactions and producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError
from onelog.base.limits import STREAM_NAME_CHARS_MAX
from onelog.broker import Action, ProducerFacts
from onelog.protocols.kafka.codec import Body, given
from onelog.protocols.kafka.errors import ErrorCode, code_of
from onelog.protocols.kafka.nodes import check_fresh, check_led
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import check_transaction, may_see_cursor, transaction_cursor
from onelog.protocols.kafka.room import AnswerRoom
from onelog.protocols.kafka.transactions.state import Facts, State
from onelog.protocols.kafka.turns import Asked, RequestTurns

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

_STATES: Final = frozenset(str(state) for state in State)
_ANY_DURATION: Final = -1
_PARTITION_BYTES: Final = STREAM_NAME_CHARS_MAX + 4
_PRODUCER_BYTES: Final = 37
"""Bytes of a partition with its topic, and of a producer, in an answer: at most."""


async def list_transactions(hub: Hub, request: Request) -> Body:
    """Transactional ids by state, producer id and age."""
    body = request.body
    states = frozenset(body.state_filters) & _STATES
    producers = frozenset(body.producer_id_filters)
    older_than_ms: int = given(body, "duration_filter", _ANY_DURATION)
    now_ms = hub.clock.now_ms()

    def matches(facts: Facts) -> bool:
        if body.state_filters and str(facts.state) not in states:
            return False
        if producers and facts.producer_id not in producers:
            return False
        # As in Kafka, an id that never began a transaction counts as an old one.
        return older_than_ms < 0 or now_ms - facts.started_ms > older_than_ms

    refusal = hub.transactions.unlisted
    return {
        "error_code": ErrorCode.none if refusal is None else code_of(refusal),
        "unknown_state_filters": [
            name for name in dict.fromkeys(body.state_filters) if name not in _STATES
        ],
        "transaction_states": [
            {
                "transactional_id": transactional_id,
                "producer_id": facts.producer_id,
                "transaction_state": str(facts.state),
            }
            async for transactional_id, facts in RequestTurns().timed(
                list(hub.transactions.listed())
            )
            if matches(facts) and may_see_cursor(hub, request, transaction_cursor(transactional_id))
        ],
    }


async def describe_transactions(hub: Hub, request: Request) -> Body:
    """All facts of some transactional ids."""
    room = AnswerRoom()
    names = RequestTurns().timed(request.body.transactional_ids)
    return {"transaction_states": [_told(hub, request, name, room) async for name in names]}


def _told(hub: Hub, request: Request, transactional_id: str, room: AnswerRoom) -> Body:
    try:
        check_transaction(hub, request, transactional_id, to_see=True)
        return _describe(hub, transactional_id, room)
    except OnelogError as error:
        return {"transactional_id": transactional_id, "error_code": code_of(error)}


def _describe(hub: Hub, transactional_id: str, room: AnswerRoom) -> Body:
    facts = hub.transactions.find(transactional_id)
    if facts is None:
        known = ErrorCode.transactional_id_not_found if transactional_id else None
        return {
            "transactional_id": transactional_id,
            "error_code": known or ErrorCode.invalid_request,
        }
    room.take(len(facts.partitions) * _PARTITION_BYTES)
    topics: dict[str, list[int]] = {}
    for name, number in sorted(facts.partitions):
        topics.setdefault(name, []).append(number)
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transactional_id,
        "transaction_state": str(facts.state),
        "transaction_timeout": facts.timeout_ms,
        "transaction_start_time": facts.started_ms,
        "producer_id": facts.producer_id,
        "producer_epoch": facts.epoch,
        "topics": [{"topic": name, "partitions": rows} for name, rows in topics.items()],
    }


async def describe_producers(hub: Hub, request: Request) -> Body:
    """The producers of some partitions, and where their transactions began."""
    asked, turns, room = Asked(hub, request, Action.DELIVER), RequestTurns(), AnswerRoom()
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _producers_of(asked, topic.name, number, room)
                    async for number in turns.over(topic.partition_indexes)
                ],
            }
            for topic in request.body.topics
        ]
    }


def _producers_of(asked: Asked, name: str, number: int, room: AnswerRoom) -> Body:
    answer: Body = {"partition_index": number, "error_code": ErrorCode.none}
    try:
        log = asked.get(name).partition(number).log
        check_led(log)
        check_fresh(log)
        room.take(log.producer_count * _PRODUCER_BYTES)
    except OnelogError as error:
        return {**answer, "error_code": code_of(error), "error_message": str(error)}
    return {**answer, "active_producers": [_producer(entry) for entry in log.producers_seen()]}


def _producer(entry: ProducerFacts) -> Body:
    return {
        "producer_id": entry.producer_id,
        "producer_epoch": entry.epoch,
        "last_sequence": entry.last_sequence,
        "last_timestamp": entry.last_seen_ms,
        "coordinator_epoch": entry.coordinator_epoch,
        "current_txn_start_offset": entry.txn_first_offset,
    }
