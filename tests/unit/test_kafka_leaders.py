"""Requests for partitions that another node leads, and reading from the nearest replica."""

from __future__ import annotations

import datetime
import importlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_request_schema

from onelog.base.errors import Unavailable
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.support.kafka_admin import Desk as Admin
from tests.support.kafka_hub import Client, Desk, batch, desk, rows_of
from tests.support.kafka_nodes import FakeCluster, Standing, clustered, depose, lead
from tests.support.turns import passes_until

E, K = ErrorCode, ApiKey
LATEST, EARLIEST = -1, -2


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path) as made:
        with clustered(made.broker):
            await write(made.client(), b"a", b"b")
            yield made


@pytest.fixture
def admin(here: Desk) -> Admin:
    return Admin(here.hub, here.hub.clock)


def cluster_of(here: Desk) -> FakeCluster:
    found = here.broker.cluster
    assert isinstance(found, FakeCluster)
    return found


async def write(client: Client, *values: bytes, **changes: Any) -> int:
    client.send(client.produce(batch(*values), **changes))
    ((_, answer),) = await client.wait_for(1)
    return rows_of(answer)[0][1]


def fetch(client: Client, offset: int, version: int = 11, rack: str = "", epoch: int = -1) -> bytes:
    schema: Any = load_request_schema(1, version)
    module = importlib.import_module(schema.__module__)
    more = {"rack_id": rack} if version >= 11 else {}
    extra = {"current_leader_epoch": epoch} if version >= 9 else {}
    body = schema(
        max_wait=datetime.timedelta(0),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(
            module.FetchTopic(
                topic="t",
                partitions=(
                    module.FetchPartition(
                        partition=0,
                        fetch_offset=offset,
                        log_start_offset=-1,
                        partition_max_bytes=1 << 20,
                        **extra,
                    ),
                ),
            ),
        ),
        forgotten_topics_data=(),
        **more,
    )
    return client.frame(K.FETCH, version, body)


async def fetched(here: Desk, offset: int, **how: Any) -> Any:
    client = here.client()
    client.send(fetch(client, offset, **how))
    ((_, answer),) = await client.wait_for(1)
    return answer.responses[0].partitions[0]


async def listed(admin: Admin, kind: int, version: int = 7, epoch: int = -1) -> Any:
    row = {"partition_index": 0, "timestamp": kind, "current_leader_epoch": epoch}
    topics = [{"name": "t", "partitions": [row]}]
    told = await admin.ask(K.LIST_OFFSETS, version, topics=topics, isolation_level=0)
    return told.topics[0].partitions[0]


async def test_a_node_that_does_not_lead_says_so(here: Desk, admin: Admin) -> None:
    depose(here.log(), 3)
    assert await write(here.client(), b"c") == E.not_leader_or_follower
    assert (await listed(admin, LATEST)).error_code is E.not_leader_or_follower
    assert (await listed(admin, EARLIEST)).error_code is E.not_leader_or_follower
    assert (await fetched(here, 0, version=10)).error_code is E.not_leader_or_follower
    row = {"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}
    told = await admin.ask(K.OFFSET_FOR_LEADER_EPOCH, topics=[{"topic": "t", "partitions": [row]}])
    assert told.topics[0].partitions[0].error_code is E.not_leader_or_follower
    gone = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}]
    told = await admin.ask(K.DELETE_RECORDS, topics=gone, timeout=1000)
    assert told.topics[0].partitions[0].error_code is E.not_leader_or_follower
    told = await admin.ask(K.DESCRIBE_PRODUCERS, topics=[{"name": "t", "partition_indexes": [0]}])
    assert told.topics[0].partitions[0].error_code is E.not_leader_or_follower


async def test_the_epoch_of_the_client_is_judged_before_who_leads(here: Desk, admin: Admin) -> None:
    depose(here.log(), 3)
    for epoch, code in ((2, E.fenced_leader_epoch), (4, E.unknown_leader_epoch)):
        assert (await listed(admin, LATEST, epoch=epoch)).error_code is code
        assert (await fetched(here, 0, epoch=epoch)).error_code is code
        assert (await fetched(here, 0, version=10, epoch=epoch)).error_code is code
    assert (await fetched(here, 0, epoch=3)).error_code is E.none


# -- KIP-392


async def test_the_leader_names_an_in_sync_replica_in_the_rack_of_the_consumer(
    here: Desk,
) -> None:
    found = await fetched(here, 0, rack="west")
    assert (found.error_code, found.preferred_read_replica) == (E.none, 1)
    assert not found.records
    cluster_of(here).lead(here.log(), 0, 0, isr=(0, 2))
    assert (await fetched(here, 0, rack="west")).preferred_read_replica == 2
    for rack in ("east", "north", ""):
        served = await fetched(here, 0, rack=rack)
        assert served.preferred_read_replica == -1
        assert served.records
    cluster_of(here).lead(here.log(), 0, 0, isr=(0,))
    assert (await fetched(here, 0, rack="west")).records


async def test_a_follower_serves_up_to_the_end_that_it_was_told(here: Desk) -> None:
    log = here.log()
    lead(log, 1, Standing(2))
    client = here.client()
    client.send(client.produce(batch(b"c", b"d")))
    await passes_until(lambda: log.end_offset == 4)
    depose(log, 2)
    assert (log.high_watermark, log.end_offset) == (2, 4)
    assert (await fetched(here, 0)).records
    at_end = await fetched(here, 2, rack="west")
    assert (at_end.error_code, at_end.preferred_read_replica) == (E.none, -1)
    for offset in (3, 4, 9):
        assert (await fetched(here, offset)).error_code is E.offset_not_available
    await log.trim(1)
    assert (await fetched(here, 0)).error_code is E.offset_out_of_range


async def test_a_consumer_that_saw_more_waits_for_a_new_leader_to_know_it(here: Desk) -> None:
    log = here.log()
    lead(log, 1, Standing(2))
    client = here.client()
    client.send(client.produce(batch(b"c", b"d")))
    await passes_until(lambda: log.end_offset == 4)
    lead(log, 2, Standing(2, is_settled=False))
    found = await fetched(here, 4)
    assert (found.error_code, found.records or b"") == (E.none, b"")
    assert (await fetched(here, 5)).error_code is E.offset_out_of_range


@pytest.mark.parametrize("version", range(1, APIS[K.LIST_OFFSETS].last + 1))
async def test_a_leader_that_is_not_settled_tells_no_end(
    here: Desk, admin: Admin, version: int
) -> None:
    """KIP-207."""
    lead(here.log(), 1, Standing(2, is_settled=False))
    code = E.offset_not_available if version >= 5 else E.leader_not_available
    assert (await listed(admin, LATEST, version)).error_code is code
    assert (await listed(admin, 2**60, version)).error_code is code
    assert (await listed(admin, EARLIEST, version)).offset == 0
    assert (await listed(admin, 0, version)).offset == 0
    lead(here.log(), 2, Standing(2))
    assert (await listed(admin, LATEST, version)).offset == 2


async def test_a_leader_that_may_have_been_replaced_long_ago_shows_nothing(
    here: Desk, admin: Admin
) -> None:
    """It reaches neither the metadata store nor the replicas: what it has may be stale."""
    standing = Standing(2)
    lead(here.log(), 1, standing)
    assert (await fetched(here, 0)).records
    standing.is_fresh = False
    for version in (10, 11):
        assert (await fetched(here, 0, version=version)).error_code is E.not_leader_or_follower
    for kind in (LATEST, EARLIEST, 0):
        assert (await listed(admin, kind)).error_code is E.not_leader_or_follower
    row = {"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}
    told = await admin.ask(K.OFFSET_FOR_LEADER_EPOCH, topics=[{"topic": "t", "partitions": [row]}])
    assert told.topics[0].partitions[0].error_code is E.not_leader_or_follower
    gone = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}]
    told = await admin.ask(K.DELETE_RECORDS, topics=gone, timeout=1000)
    assert told.topics[0].partitions[0].error_code is E.not_leader_or_follower
    standing.is_fresh = True
    assert (await fetched(here, 0)).records


async def test_the_end_of_an_epoch_is_the_end_of_the_log(here: Desk, admin: Admin) -> None:
    lead(here.log(), 1, Standing(2))
    client = here.client()
    client.send(client.produce(batch(b"c")))
    await passes_until(lambda: here.log().end_offset == 3)
    row = {"partition": 0, "leader_epoch": 1, "current_leader_epoch": 1}
    told = await admin.ask(K.OFFSET_FOR_LEADER_EPOCH, topics=[{"topic": "t", "partitions": [row]}])
    assert told.topics[0].partitions[0].end_offset == here.log().end_offset


# -- acknowledgements


async def test_too_few_replicas_refuse_before_the_append_and_are_told_after_it(
    here: Desk,
) -> None:
    log = here.log()
    lead(log, 1, Standing(2))
    client = here.client()
    client.send(client.produce(batch(b"c")))
    await passes_until(lambda: log.end_offset == 3)
    log.refusal = Unavailable("1 of 2 replicas are in sync")
    ((_, late),) = await client.wait_for(1)
    assert rows_of(late)[0][1] == E.not_enough_replicas_after_append
    end = log.end_offset
    assert await write(here.client(), b"d") == E.not_enough_replicas
    assert log.end_offset == end


async def test_a_batch_that_its_replicas_do_not_take_in_time_is_answered_with_a_timeout(
    here: Desk,
) -> None:
    lead(here.log(), 1, Standing(2))
    assert await write(here.client(), b"c") == E.request_timed_out


async def test_a_producer_whose_leader_is_deposed_looks_for_the_next_one(here: Desk) -> None:
    log = here.log()
    lead(log, 1, Standing(2))
    client = here.client()
    client.send(client.produce(batch(b"c")))
    await passes_until(lambda: log.end_offset == 3)
    depose(log, 2)
    ((_, answer),) = await client.wait_for(1)
    assert rows_of(answer)[0][1] == E.not_leader_or_follower
