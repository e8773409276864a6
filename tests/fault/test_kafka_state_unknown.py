"""What does Kafka serve when the stream of its groups or of its transactions is damaged? (I9)

Everything that needs neither; the others are told that there is no coordinator now, which every
client waits with. Nothing is answered as if there were no groups, and no transaction is aborted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kio.index import load_request_schema

from onelog.base.clock import SystemClock
from onelog.base.errors import CorruptBatch
from onelog.broker import Broker, StreamConfig
from onelog.broker.shards import STATE_UNKNOWN
from onelog.config import Config
from onelog.kernel import ATTR_TRANSACTIONAL
from onelog.protocols.kafka.apis import APIS, SERVED, Api, ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.groups.rows import STREAM as GROUPS
from onelog.protocols.kafka.handlers import HANDLERS
from onelog.protocols.kafka.hub import Hub
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.transactions.coordinator import STREAM as TRANSACTIONS
from onelog.protocols.kafka.transactions.state import Producer
from onelog.security.authenticator import Authenticator
from tests.fault.test_internal_damage import damage, running, write_rows
from tests.support.kafka_entities import entity
from tests.support.kafka_hub import Client, batch, fetch_body, rows_of

pytestmark = pytest.mark.fault

K, E = ApiKey, ErrorCode

GROUP_APIS: dict[ApiKey, dict[str, Any]] = {
    K.FIND_COORDINATOR: {"key": "g", "coordinator_keys": ["g", "h"], "key_type": 0},
    K.JOIN_GROUP: {"group_id": "g", "session_timeout": 10_000, "rebalance_timeout": 10_000},
    K.SYNC_GROUP: {"group_id": "g", "member_id": "m"},
    K.HEARTBEAT: {"group_id": "g", "member_id": "m"},
    K.LEAVE_GROUP: {"group_id": "g", "member_id": "m", "members": [{"member_id": "m"}]},
    K.OFFSET_COMMIT: {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 3}]}],
    },
    K.OFFSET_FETCH: {
        "group_id": "g",
        "topics": [{"name": "t", "partition_indexes": [0, 1]}],
        "groups": [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}],
    },
    K.OFFSET_DELETE: {
        "group_id": "g",
        "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}],
    },
    K.DESCRIBE_GROUPS: {"groups": ["g", "h"]},
    K.LIST_GROUPS: {},
    K.DELETE_GROUPS: {"groups_names": ["g"]},
}
TRANSACTION_APIS: dict[ApiKey, dict[str, Any]] = {
    K.FIND_COORDINATOR: {"key": "x", "coordinator_keys": ["x"], "key_type": 1},
    K.INIT_PRODUCER_ID: {"transactional_id": "x", "transaction_timeout": 10_000}
    | {"producer_id": -1, "producer_epoch": -1},
    K.ADD_PARTITIONS_TO_TXN: {
        "v3_and_below_transactional_id": "x",
        "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
    },
    K.ADD_OFFSETS_TO_TXN: {"transactional_id": "x", "group_id": "g"},
    K.END_TXN: {"transactional_id": "x", "committed": True},
    K.TXN_OFFSET_COMMIT: {
        "transactional_id": "x",
        "group_id": "g",
        "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}],
    },
    K.LIST_TRANSACTIONS: {},
    K.DESCRIBE_TRANSACTIONS: {"transactional_ids": ["x"]},
}
OTHERS = [row for row in APIS.values() if row.key in HANDLERS and not row.before_login]
"""All but Produce and Fetch, which have a claim of their own, and the login."""
LINK = b'{"query":"q","batch":1,"commit":true,"members":[]}'
LATER = {E.coordinator_not_available, E.coordinator_load_in_progress}


@asynccontextmanager
async def kafka(data: Path) -> AsyncIterator[tuple[Broker, Hub]]:
    """A hub on a data directory; it opens whatever is damaged."""
    async with running(data) as broker:
        authenticator = await Authenticator.open(broker.store, SystemClock())
        hub = Hub(broker, authenticator, Config(), SystemClock())
        await hub.open()
        try:
            if broker.streams.find("t") is None:
                await broker.streams.create(StreamConfig(name="t", captures=("t",), partitions=2))
            yield broker, hub
        finally:
            await hub.close()
            await authenticator.close()


async def ask(client: Client, key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
    schema: Any = load_request_schema(int(key), version)
    client.send(client.frame(key, version, entity(schema, body)))
    ((_number, answer),) = await client.wait_for(1)
    return answer


def codes_in(answer: Any) -> Iterator[ErrorCode]:
    """Every error code of an answer, at any depth."""
    if isinstance(answer, ErrorCode):
        yield answer
    elif isinstance(answer, tuple):
        for row in answer:
            yield from codes_in(row)
    elif hasattr(answer, "__dataclass_fields__"):
        for name in answer.__dataclass_fields__:
            yield from codes_in(getattr(answer, name))


def versions_of(key: ApiKey) -> range:
    return range(max(APIS[key].first, APIS[key].served), APIS[key].last + 1)


@pytest.mark.parametrize(
    ("stream", "apis"),
    [(GROUPS, GROUP_APIS), (GROUPS, TRANSACTION_APIS), (TRANSACTIONS, TRANSACTION_APIS)],
)
async def test_whoever_needs_what_is_not_known_is_told_to_come_later(
    stream: str, apis: dict[ApiKey, dict[str, Any]], tmp_path: Path
) -> None:
    """In every version, for every part of the request, and the connection stays."""
    await write_rows(tmp_path, stream)
    damage(tmp_path, stream, "first")
    async with kafka(tmp_path) as (broker, hub):
        client = Client(hub)
        for key, body in apis.items():
            for version in versions_of(key):
                if key is K.FIND_COORDINATOR and version == 0 and body["key_type"]:
                    continue  # it knows no transactions
                codes = list(codes_in(await ask(client, key, version, body)))
                assert codes and LATER.issuperset(codes), (key.name, version, codes)
        (trouble,) = broker.troubles.standing()
        assert (trouble.kind, trouble.place, trouble.blocks) == (STATE_UNKNOWN, stream, True)
        link = Request(SERVED[K.LINK], 0, 1, "", LINK, client.connection)
        told = await HANDLERS[K.LINK](hub, link)
        assert isinstance(told, bytes)
        assert msgspec.json.decode(told)["error"] in LATER


@pytest.mark.parametrize("api", OTHERS, ids=lambda api: api.key.name)
async def test_no_request_ends_its_connection_because_state_is_not_known(
    api: Api, tmp_path: Path
) -> None:
    """The total table: an API that asks for a coordinator has a place for the refusal."""
    await write_rows(tmp_path, GROUPS)
    damage(tmp_path, GROUPS, "first")
    body = GROUP_APIS.get(api.key) or TRANSACTION_APIS.get(api.key) or {}
    async with kafka(tmp_path) as (_broker, hub):
        client = Client(hub)
        for version in versions_of(api.key):
            await ask(client, api.key, version, body)
        assert not client.line.closed


async def test_damage_that_is_found_later_ends_no_connection_either(tmp_path: Path) -> None:
    """What was read at the start is still known; what would be written is refused."""
    async with kafka(tmp_path) as (broker, hub):
        client = Client(hub)
        for stream in (GROUPS, TRANSACTIONS):
            partition = broker.streams.get(stream).partitions[0]
            partition.stop_damaged(0, CorruptBatch("a flipped bit"))
        for apis in (GROUP_APIS, TRANSACTION_APIS):
            for key, body in apis.items():
                for version in versions_of(key):
                    await ask(client, key, version, body)
        assert not client.line.closed
        for key, apis in ((K.OFFSET_COMMIT, GROUP_APIS), (K.INIT_PRODUCER_ID, TRANSACTION_APIS)):
            told = await ask(client, key, APIS[key].last, apis[key])
            assert set(codes_in(told)) == {E.coordinator_not_available}


@pytest.mark.parametrize("stream", [GROUPS, TRANSACTIONS])
async def test_records_go_in_and_out_and_plain_producers_go_on(stream: str, tmp_path: Path) -> None:
    await write_rows(tmp_path, stream)
    damage(tmp_path, stream, "last")
    async with kafka(tmp_path) as (_broker, hub):
        client = Client(hub)
        numbers = set()
        for _ in range(2):
            told = await ask(
                client,
                K.INIT_PRODUCER_ID,
                4,
                {"transactional_id": None, "producer_id": -1, "producer_epoch": -1},
            )
            assert told.error_code is E.none
            numbers.add((told.producer_id, told.producer_epoch))
        assert len(numbers) == 2
        ((number, epoch), *_rest) = numbers
        client.send(client.produce(batch(b"plain"), batch(b"once", producer=(number, epoch, 0))))
        ((_number, produced),) = await client.wait_for(1)
        assert rows_of(produced) == [(0, 0, 0), (1, 0, 0)]
        client.send(client.frame(K.FETCH, 4, fetch_body("t", 1)))
        ((_number, fetched),) = await client.wait_for(1)
        assert b"once" in fetched.responses[0].partitions[0].records
        metadata = await ask(client, K.METADATA, 9, {"topics": [{"name": "t"}]})
        assert set(codes_in(metadata)) == {E.none}
        made = await ask(
            client,
            K.CREATE_TOPICS,
            5,
            {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]},
        )
        assert made.topics[0].error_code is E.none


@pytest.mark.parametrize(("stream", "key_type"), [(GROUPS, 0), (TRANSACTIONS, 1)])
async def test_rows_that_are_whole_and_mean_nothing_are_damage_too(
    stream: str, key_type: int, tmp_path: Path
) -> None:
    await write_rows(tmp_path, stream)
    async with kafka(tmp_path) as (broker, hub):
        (trouble,) = broker.troubles.standing()
        assert (trouble.kind, trouble.place, trouble.blocks) == (STATE_UNKNOWN, stream, True)
        told = await ask(
            Client(hub), K.FIND_COORDINATOR, 4, {"coordinator_keys": ["a"], "key_type": key_type}
        )
        assert set(codes_in(told)) == {E.coordinator_not_available}


async def test_groups_are_served_without_transactions(tmp_path: Path) -> None:
    await write_rows(tmp_path, TRANSACTIONS)
    damage(tmp_path, TRANSACTIONS, "first")
    async with kafka(tmp_path) as (_broker, hub):
        client = Client(hub)
        told = await ask(client, K.OFFSET_COMMIT, 7, GROUP_APIS[K.OFFSET_COMMIT])
        assert set(codes_in(told)) == {E.none}
        told = await ask(client, K.OFFSET_FETCH, 5, GROUP_APIS[K.OFFSET_FETCH])
        assert [row.committed_offset for row in told.topics[0].partitions] == [3, -1]


@pytest.mark.parametrize("stream", [GROUPS, TRANSACTIONS])
async def test_an_open_transaction_is_neither_ended_nor_written_to(
    stream: str, tmp_path: Path
) -> None:
    """It is no stray: after the repair its producer goes on and commits."""
    async with kafka(tmp_path) as (_broker, hub):
        client = Client(hub)
        await ask(client, K.OFFSET_COMMIT, 7, GROUP_APIS[K.OFFSET_COMMIT])
        producer = await hub.transactions.init_producer("x", 60_000)
        await hub.transactions.add("x", producer, frozenset({("t", 0)}))
        client.send(write_of(client, producer, 0))
        await client.wait_for(1)
    damage(tmp_path, stream, "first")
    async with kafka(tmp_path) as (broker, hub):
        log = broker.streams.get("t").partitions[0]
        end = log.end_offset
        client = Client(hub)
        client.send(write_of(client, producer, 1))
        ((_number, answer),) = await client.wait_for(1)
        assert rows_of(answer) == [(0, int(E.not_enough_replicas), -1)]
        assert (log.end_offset, log.last_stable_offset) == (end, 0), "no marker, no record"
    damage(tmp_path, stream, "first")  # flipped back, as from a backup
    async with kafka(tmp_path) as (broker, hub):
        assert not broker.troubles.standing()
        client = Client(hub)
        client.send(write_of(client, producer, 1))
        ((_number, answer),) = await client.wait_for(1)
        assert rows_of(answer) == [(0, 0, 1)]
        await hub.transactions.end("x", producer, commit=True)
        told = await ask(client, K.OFFSET_FETCH, 5, GROUP_APIS[K.OFFSET_FETCH])
        assert [row.committed_offset for row in told.topics[0].partitions] == [3, -1]


def write_of(client: Client, producer: Producer, sequence: int) -> bytes:
    return client.produce(
        batch(b"v", attributes=ATTR_TRANSACTIONAL, producer=(*producer, sequence)),
        transactional_id="x",
    )


async def test_a_topic_is_not_deleted_while_what_groups_committed_in_it_is_not_known(
    tmp_path: Path,
) -> None:
    """Else a new topic of that name would begin where the old one was read to."""
    await write_rows(tmp_path, GROUPS)
    damage(tmp_path, GROUPS, "first")
    async with kafka(tmp_path) as (broker, hub):
        told = await ask(Client(hub), K.DELETE_TOPICS, 5, {"topic_names": ["t"]})
        assert told.responses[0].error_code is E.coordinator_not_available
        assert "~groups" in told.responses[0].error_message
        assert broker.streams.find("t") is not None
