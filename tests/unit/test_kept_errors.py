"""An error that is kept is raised for each request: it must not grow with them (I8)."""

from __future__ import annotations

import asyncio
from functools import partial

import kio.schema.list_offsets.v1.request as asking
import pytest

from onelog.base.errors import OnelogError, PartitionStopped
from onelog.log.wakeup import as_future
from onelog.protocols.kafka.apis import ApiKey
from tests.support.kafka_hub import batch, desk
from tests.unit.test_kafka_fetch import fetch, put

TIMES = 50
FRAMES = 40


def frames_of(error: BaseException) -> int:
    """How many frames an error holds."""
    found, trace = 0, error.__traceback__
    while trace is not None:
        found, trace = found + 1, trace.tb_next
    return found


def list_offsets(client) -> bytes:
    partition = asking.ListOffsetsPartition(partition_index=0, timestamp=1)
    topic = asking.ListOffsetsTopic(name="t", partitions=(partition,))
    body = asking.ListOffsetsRequest(replica_id=-1, topics=(topic,))
    return client.frame(ApiKey.LIST_OFFSETS, 1, body)


REQUESTS = {
    "fetch": lambda client: fetch(client, 0),
    "fetch at the end": lambda client: fetch(client, 1),
    "list offsets": list_offsets,
    "produce": lambda client: client.produce(batch(b"a")),
}


@pytest.mark.parametrize("what", REQUESTS)
async def test_requests_to_a_stopped_partition_leave_nothing_behind(tmp_path, what):
    async with desk(tmp_path) as here:
        await put(here, batch(b"a"))
        failure = PartitionStopped("the disk is broken")
        here.log(0).stop(failure)
        client = here.client()
        for _ in range(TIMES):
            client.send(REQUESTS[what](client))
        await client.wait_for(TIMES)
        assert here.log(0).stopped is failure
        assert frames_of(failure) < FRAMES


async def test_who_reads_or_waits_there_leaves_nothing_behind(tmp_path):
    async with desk(tmp_path) as here:
        await put(here, batch(b"a"))
        failure = PartitionStopped("the disk is broken")
        log = here.log(0)
        log.stop(failure)
        for _ in range(TIMES):
            with pytest.raises(OnelogError):
                log.read(log.high_watermark, 1)
            with pytest.raises(OnelogError):
                await as_future(partial(log.when_visible, log.high_watermark))
            await asyncio.sleep(0)
        assert frames_of(failure) < FRAMES
