"""What a Kafka producer is answered, and what of it lies in the log then."""

from __future__ import annotations

import asyncio
import errno
import struct
from collections import Counter

import pytest
from kio.schema.list_offsets.v1 import request as asking

from onelog.base import faults
from onelog.broker import Cleanup, Durability
from onelog.config import Config
from onelog.config.kafka import Kafka, KafkaLimits
from onelog.kernel import crc32c, decode_batch, scan_batches
from onelog.log.progress import Role
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.appending import RUN_BYTES_MAX
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.producing import INFLATED_HERE_BYTES
from onelog.record.batch import build_batch, compress_batch
from onelog.record.compression import deflate
from tests.support.kafka_hub import batch, desk, rows_of
from tests.support.mqtt import until


@pytest.fixture
async def here(tmp_path):
    async with desk(tmp_path) as made:
        yield made


@pytest.fixture
def writes():
    """How often the log was written to."""
    counts = Counter()
    faults.arm("segment.write", lambda: counts.update(["write"]))
    yield counts
    faults.disarm("segment.write")


def values(log):
    """The values of all records, in order."""
    data = log.read(log.start_offset, 1 << 30)
    return [
        record[3]
        for info in scan_batches(data)
        for record in decode_batch(data, info.position).records()
    ]


async def test_requests_of_one_pass_are_one_write_and_each_has_its_own_offset(here, writes):
    one, two = here.client(), here.client()
    one.send(one.produce(batch(b"a")), one.produce(batch(b"b", b"c")))
    two.send(two.produce(batch(b"d")))
    assert one.answers() == two.answers() == [], "nothing is answered before it is written"
    first, second = await one.wait_for(2)
    (third,) = await two.wait_for(1)
    assert [rows_of(body) for _, body in (first, second, third)] == [
        [(0, 0, 0)], [(0, 0, 1)], [(0, 0, 3)],
    ]  # fmt: skip
    assert (first[0], second[0]) == (1, 2), "answers come in the order of the requests"
    assert writes["write"] == 1
    assert len(one.line.written) == 1
    assert values(here.log()) == [b"a", b"b", b"c", b"d"]


async def test_a_large_batch_that_came_in_several_reads_is_stored_as_it_came(here, writes):
    """It is written from the buffer of its frame; batches of one pass are one write."""
    client, sent = here.client(), batch(b"a" * 50_000, b"b" * 50_000)
    for batches in ([sent], [sent, batch(b"c"), sent]):
        before, start = writes["write"], here.log().end_offset
        data = b"".join(client.produce(one) for one in batches)
        for at in range(0, len(data), 70_000):
            client.send(data[at : at + 70_000])
        answers = await client.wait_for(len(batches))
        assert {rows_of(body)[0][1] for _, body in answers[-len(batches) :]} == {0}
        assert writes["write"] == before + 1
        stored = bytes(here.log().read(start, 1 << 20))
        infos = scan_batches(stored)
        for info, one in zip(infos, batches, strict=True):
            at = info.position
            assert stored[at + 21 : at + info.size_bytes] == one[21:]
        assert [info.base_offset for info in infos] == [start, start + 2, start + 3][: len(infos)]
        assert infos[-1].last_offset + 1 == here.log().end_offset


async def test_the_bytes_of_a_batch_are_stored_as_they_came(here):
    """I6. Only the base offset and the leader epoch, which its CRC does not cover, are set."""
    client, sent = here.client(), batch(b"a", b"b", codec=1)
    client.send(client.produce(batch(b"x")), client.produce(sent))
    await client.wait_for(2)
    stored = bytes(here.log().read(1, 1 << 20))
    assert stored[21:] == sent[21:]
    assert stored[8:12] == sent[8:12]
    assert struct.unpack_from(">q", stored) == (1,)


async def test_a_partition_that_is_refused_leaves_the_others_alone(here):
    client = here.client()
    damaged = bytearray(batch(b"bad"))
    damaged[-2] ^= 1
    client.send(client.produce(bytes(damaged), batch(b"good"), batch(b"third")))
    ((_, answer),) = await client.wait_for(1)
    assert rows_of(answer) == [
        (0, ErrorCode.corrupt_message, -1),
        (1, 0, 0),
        (2, ErrorCode.unknown_topic_or_partition, -1),
    ]
    assert values(here.log(0)) == []
    assert values(here.log(1)) == [b"good"]


def mended(data, at, layout, *parts):
    out = bytearray(data)
    struct.pack_into(layout, out, at, *parts)
    struct.pack_into(">I", out, 17, crc32c(out[21:]))
    return bytes(out)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (None, ErrorCode.invalid_record),
        (b"", ErrorCode.corrupt_message),
        (batch(b"a")[:-1], ErrorCode.corrupt_message),
        (mended(batch(b"a"), 16, ">b", 1), ErrorCode.unsupported_for_message_format),
        (batch(b"a") + batch(b"b"), ErrorCode.invalid_record),
        (mended(batch(b"a", b"b"), 23, ">i", 7), ErrorCode.invalid_record),
        (mended(batch(b"a", b"b"), 57, ">i", 1), ErrorCode.invalid_record),
        (mended(batch(b"a", codec=1), 61, ">B", 7), ErrorCode.corrupt_message),
        (mended(batch(b"a"), 21, ">h", 7), ErrorCode.unsupported_compression_type),
        (batch(b"a" * 1_000_000), ErrorCode.message_too_large),
        (mended(batch(b"a"), 21, ">h", 32), ErrorCode.invalid_record),
    ],
    ids=[
        "null", "empty", "cut", "magic", "two", "sparse", "count", "gzip", "codec", "size",
        "control",
    ],
)  # fmt: skip
async def test_what_is_wrong_with_a_batch_has_its_own_code(here, data, code):
    client = here.client()
    client.send(client.produce(data))
    ((_, answer),) = await client.wait_for(1)
    assert rows_of(answer) == [(0, code, -1)]
    assert here.log().end_offset == 0
    assert not client.line.closed


@pytest.mark.parametrize("size", [1, INFLATED_HERE_BYTES * 3], ids=["small", "large"])
@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
async def test_records_without_a_key_are_refused_where_only_the_last_of_a_key_is_kept(
    here, codec, size
):
    """Compressed or not, inflated on the loop or in a thread."""
    await here.make("table", cleanup=Cleanup.COMPACT)
    client, value = here.client(), b"v" * size
    keyless = build_batch(
        [(None, None, value, (), 1)], base_offset=0, tag_topics=False, codec=codec
    )
    client.send(
        client.produce(keyless, topic="table"),
        client.produce(batch(value, codec=codec), topic="table"),
    )
    (_, refused), (_, taken) = await client.wait_for(2)
    assert rows_of(refused) == [(0, ErrorCode.invalid_record, -1)]
    assert rows_of(taken) == [(0, 0, 0)]


@pytest.mark.parametrize("size", [1, INFLATED_HERE_BYTES * 3], ids=["small", "large"])
async def test_what_compression_hides_is_checked(here, size):
    client = here.client()
    records = bytearray(batch(b"a" * size, b"b")[61:])
    records[-6] = 0  # the second record's offset delta
    head = bytearray(batch(b"a" * size, b"b", codec=1)[:61])
    packed = deflate(1, bytes(records))
    struct.pack_into(">i", head, 8, 49 + len(packed))
    client.send(client.produce(mended(bytes(head) + packed, 16, ">b", 2)))
    ((_, answer),) = await client.wait_for(1)
    assert rows_of(answer) == [(0, ErrorCode.invalid_record, -1)]
    assert here.log().end_offset == 0


# -- idempotent producers


def numbered(sequence, *values, producer=7, epoch=0):
    return batch(*values, producer=(producer, epoch, sequence))


async def test_batches_of_one_producer_in_one_pass_follow_each_other(here):
    client = here.client()
    client.send(
        client.produce(numbered(0, b"a")),
        client.produce(numbered(1, b"b", b"c")),
        client.produce(numbered(3, b"d")),
    )
    answers = await client.wait_for(3)
    assert [rows_of(body) for _, body in answers] == [[(0, 0, 0)], [(0, 0, 1)], [(0, 0, 3)]]
    assert values(here.log()) == [b"a", b"b", b"c", b"d"]


async def test_a_batch_sent_twice_in_one_pass_is_stored_once(here):
    client, again = here.client(), here.client()
    client.send(client.produce(numbered(0, b"a")))
    again.send(again.produce(numbered(0, b"a")), again.produce(numbered(1, b"b")))
    ((_, first),) = await client.wait_for(1)
    (_, second), (_, third) = await again.wait_for(2)
    assert rows_of(first) == rows_of(second) == [(0, 0, 0)]
    assert rows_of(third) == [(0, 0, 1)]
    assert values(here.log()) == [b"a", b"b"]


async def test_a_gap_in_the_sequence_is_refused_and_what_follows_too(here):
    client = here.client()
    client.send(
        client.produce(numbered(0, b"a")),
        client.produce(numbered(2, b"c")),
        client.produce(numbered(1, b"b")),
    )
    codes = [rows_of(body)[0][1] for _, body in await client.wait_for(3)]
    assert codes == [0, ErrorCode.out_of_order_sequence_number, 0]
    assert values(here.log()) == [b"a", b"b"]


async def test_batches_of_many_producers_share_a_write(here, writes):
    clients = [here.client() for _ in range(5)]
    for number, client in enumerate(clients):
        client.send(client.produce(numbered(0, b"%d" % number, producer=number)))
    for number, client in enumerate(clients):
        ((_, answer),) = await client.wait_for(1)
        assert rows_of(answer) == [(0, 0, number)]
    assert writes["write"] == 1


# -- acks and durability


async def test_an_answer_waits_until_its_batch_is_durable(here):
    """I4."""
    await here.make("safe", durability=Durability.FSYNC)
    log, client = here.log(topic="safe"), here.client()
    seen = []
    faults.arm("segment.fsync", lambda: seen.append(len(client.line.written)))
    try:
        client.send(client.produce(batch(b"a"), topic="safe"))
        client.send(client.produce(batch(b"b"), topic="safe"))
        answers = await client.wait_for(2)
    finally:
        faults.disarm("segment.fsync")
    assert [rows_of(body) for _, body in answers] == [[(0, 0, 0)], [(0, 0, 1)]]
    assert seen[0] == 0, "an answer went before the sync"
    assert log.high_watermark == 2


async def test_without_acks_there_is_no_answer_and_the_next_request_is_served(here):
    client = here.client()
    client.send(client.produce(batch(b"a"), acks=0), client.produce(batch(b"b")))
    ((number, answer),) = await client.wait_for(1)
    assert (number, rows_of(answer)) == (2, [(0, 0, 1)])
    assert values(here.log()) == [b"a", b"b"]


async def test_without_acks_an_error_ends_the_connection(here):
    client = here.client()
    client.send(client.produce(batch(b"a")[:-1], acks=0))
    assert client.line.closed


async def test_other_acks_are_refused(here):
    client = here.client()
    client.send(client.produce(batch(b"a"), acks=2))
    ((_, answer),) = await client.wait_for(1)
    assert rows_of(answer) == [(0, ErrorCode.invalid_required_acks, -1)]
    assert here.log().end_offset == 0


async def test_a_full_disk_refuses_every_batch_of_the_write_and_the_next_goes_on(here):
    one, two = here.client(), here.client()
    faults.arm("segment.write", faults.fail_with(errno.ENOSPC))
    try:
        one.send(one.produce(numbered(0, b"a")))
        two.send(two.produce(batch(b"b")))
        ((_, first),) = await one.wait_for(1)
        ((_, second),) = await two.wait_for(1)
    finally:
        faults.disarm("segment.write")
    assert rows_of(first) == rows_of(second) == [(0, ErrorCode.kafka_storage_error, -1)]
    one.send(one.produce(numbered(0, b"a")))
    ((_, again),) = await one.wait_for(1)
    assert rows_of(again) == [(0, 0, 0)], "what was not stored does not count as sent"
    assert values(here.log()) == [b"a"]


async def test_a_large_run_is_written_before_the_pass_ends(here, writes):
    client = here.client()
    large = batch(b"x" * (RUN_BYTES_MAX // 2))
    assert len(large) < here.log().message_bytes_max
    client.send(*(client.produce(large) for _ in range(5)))
    assert writes["write"] == 2
    await client.wait_for(5)
    assert writes["write"] == 3


# -- order and bounds of a connection


async def test_a_request_begins_when_the_produces_before_it_are_answered(here):
    client = here.client()
    partition = asking.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = asking.ListOffsetsTopic(name="t", partitions=(partition,))
    body = asking.ListOffsetsRequest(replica_id=-1, topics=(topic,))
    client.send(
        client.produce(batch(b"a")),
        client.frame(ApiKey.LIST_OFFSETS, 1, body),
        client.produce(batch(b"b")),
    )
    answers = await client.wait_for(3)
    assert [number for number, _ in answers] == [1, 2, 3]
    assert answers[1][1].topics[0].partitions[0].offset == 1, "what came before, not what after"


@pytest.mark.parametrize("size", [1, INFLATED_HERE_BYTES * 3], ids=["small", "large"])
async def test_compressed_batches_keep_their_place_among_the_others(here, size):
    client = here.client()
    client.send(
        client.produce(batch(b"a")),
        client.produce(batch(b"b" * size, codec=1)),
        client.produce(batch(b"c")),
    )
    answers = await client.wait_for(3)
    assert [rows_of(body) for _, body in answers] == [[(0, 0, 0)], [(0, 0, 1)], [(0, 0, 2)]]


async def test_frames_may_come_in_any_pieces(here):
    client = here.client()
    data = b"".join(client.produce(batch(b"%d" % number)) for number in range(5))
    for at in range(0, len(data), 7):
        client.connection.data_received(data[at : at + 7])
    answers = await client.wait_for(5)
    assert [rows_of(body)[0][2] for _, body in answers] == [0, 1, 2, 3, 4]


async def test_what_came_before_lost_framing_is_served_and_then_the_connection_ends(here):
    client = here.client()
    client.send(client.produce(batch(b"a")), struct.pack(">i", -5))
    assert client.line.closed
    await asyncio.sleep(0)
    assert values(here.log()) == [b"a"]


async def test_a_request_that_cannot_be_read_ends_its_connection_only(here):
    """I10."""
    client, other = here.client(), here.client()
    client.send(struct.pack(">ihhih", 10, 0, 9, 1, -1))
    assert client.line.closed
    other.send(other.produce(batch(b"a")))
    assert rows_of((await other.wait_for(1))[0][1]) == [(0, 0, 0)]


async def test_reading_pauses_while_too_many_requests_wait(tmp_path):
    """I8."""
    config = Config(kafka=Kafka(limits=KafkaLimits(requests_waiting=3)))
    async with desk(tmp_path, config) as here:
        client = here.client()
        client.send(*(client.produce(batch(b"%d" % number)) for number in range(10)))
        assert not client.line.reading
        answers = await client.wait_for(10)
        assert [rows_of(body)[0][2] for _, body in answers] == list(range(10))
        assert client.line.reading


async def test_what_was_served_counts_no_more_however_much_it_was(tmp_path):
    """A connection that lives for long is read from as on its first day."""
    limits = KafkaLimits(requests_waiting=1, request_bytes=4096)
    async with desk(tmp_path, Config(kafka=Kafka(limits=limits))) as here:
        client = here.client()
        for _ in range(400):
            client.send(*(client.produce(batch(b"x")) for _ in range(3)))
            assert not client.line.reading
            await client.wait_for(3)
            assert client.line.reading


async def test_one_peer_cannot_keep_the_loop_to_itself(here):
    """After a megabyte it is the others' turn."""
    client = here.client()
    for _ in range(3):
        client.send(client.produce(batch(b"x" * 500_000)))
    assert not client.line.reading
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert client.line.reading


async def test_a_client_that_leaves_harms_nobody(here):
    gone, other = here.client(), here.client()
    gone.send(gone.produce(batch(b"a")))
    gone.connection.connection_lost(None)
    other.send(other.produce(batch(b"b")))
    assert rows_of((await other.wait_for(1))[0][1]) == [(0, 0, 1)]
    assert gone.line.written == []


async def test_work_that_breaks_ends_its_connection(here, monkeypatch):
    """I10: else every answer behind it would wait for ever."""
    client = here.client()
    large = batch(b"x" * (INFLATED_HERE_BYTES * 3), codec=1)
    monkeypatch.setattr(here.hub.broker, "in_thread", broken)
    client.send(client.produce(large))
    await until(lambda: client.line.closed)
    assert here.log().end_offset == 0


async def broken(work):
    raise RuntimeError("a bug")


@pytest.mark.parametrize("codec", [0, 4])
async def test_a_client_does_not_say_how_long_its_tombstones_stay(here, codec):
    """One from the past would take them out before `delete.retention.ms` is over."""
    client = here.client()
    sent = build_batch([(None, b"k", None, (), 1)], attributes=0x40)
    client.send(client.produce(compress_batch(sent, codec) if codec else sent))
    ((_, answer),) = await client.wait_for(1)
    assert rows_of(answer) == [(0, ErrorCode.invalid_record, -1)]
    assert here.log().high_watermark == 0


async def test_a_replica_that_does_not_lead_sends_producers_elsewhere(here):
    """NOT_LEADER_OR_FOLLOWER: the client asks for the leader and tries again."""
    client, log = here.client(), here.log()
    log.replica.become(Role.FOLLOWER, 1)
    client.send(client.produce(batch(b"a")))
    ((_, refused),) = await client.wait_for(1)
    assert rows_of(refused) == [(0, ErrorCode.not_leader_or_follower, -1)]
    log.replica.become(Role.LEADER, 2)
    client.send(client.produce(batch(b"b")))
    ((_, taken),) = await client.wait_for(1)
    assert rows_of(taken) == [(0, 0, 0)]
    assert values(log) == [b"b"]
