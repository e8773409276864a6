"""Batches that are opened: which records are blamed, and which codec they are stored in."""

from __future__ import annotations

import pytest

from onelog.broker import Cleanup, StreamConfig, Timestamps
from onelog.kernel import ATTR_CODEC_MASK, decode_batch, scan_batches
from onelog.log.config import CODECS, Compression
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.opening import BLAMED_MAX
from onelog.record.batch import build_batch, inflated_records
from onelog.record.compression import CODEC_NAMES
from tests.support.kafka_hub import Desk, desk, rows_of

E = ErrorCode
NOW_MS = 1_700_000_000_000


@pytest.fixture
async def here(tmp_path):
    async with desk(tmp_path) as made:
        yield made


def keyed(*keys: bytes | None, codec: int = 0, size: int = 1) -> bytes:
    return build_batch([(None, key, b"v" * size, (), NOW_MS) for key in keys], codec=codec)


async def send(here: Desk, *batches: bytes, topic: str, version: int = 9, **rest):
    """The rows of the answer."""
    client = here.client()
    client.send(client.produce(*batches, topic=topic, version=version, **rest))
    ((_, answer),) = await client.wait_for(1)
    return answer.responses[0].partition_responses


def blamed(row) -> list[int]:
    return [each.batch_index for each in row.record_errors]


# -- who is to blame


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("size", [1, 40_000])
@pytest.mark.parametrize("version", [8, 9, 11])
async def test_just_the_records_without_a_key_are_blamed(here, codec, size, version) -> None:
    await here.make("c", cleanup=Cleanup.COMPACT)
    keys = [b"k%d" % number for number in range(10)]
    keys[3] = keys[7] = None
    bad, good = keyed(*keys, codec=codec, size=size), keyed(b"k")
    first, second = await send(here, bad, good, topic="c", version=version)
    assert (first.error_code, first.base_offset, blamed(first)) == (E.invalid_record, -1, [3, 7])
    assert all("no key" in row.batch_index_error_message for row in first.record_errors)
    assert "2 of 10 records" in first.error_message
    assert (second.error_code, blamed(second)) == (E.none, [])
    assert (here.log(0, "c").end_offset, here.log(1, "c").end_offset) == (0, 1)


async def test_versions_without_room_for_it_are_told_of_the_batch_only(here) -> None:
    await here.make("c", cleanup=Cleanup.COMPACT)
    (row,) = await send(here, keyed(b"a", None), topic="c", version=7)
    assert row.error_code is E.invalid_record


@pytest.mark.parametrize("count", [129, BLAMED_MAX, 65_537])
@pytest.mark.parametrize("codec", [0, 4])
async def test_many_records_that_are_to_blame_are_named_up_to_a_bound(here, count, codec) -> None:
    await here.make("c", cleanup=Cleanup.COMPACT)
    (row,) = await send(here, keyed(*[None] * count, codec=codec), topic="c")
    assert blamed(row) == list(range(min(count, BLAMED_MAX)))
    assert f"{count} of {count} records" in row.error_message


async def test_what_is_wrong_with_the_whole_batch_blames_no_record(here) -> None:
    await here.make("c", cleanup=Cleanup.COMPACT)
    damaged = bytearray(keyed(None, None))
    damaged[-1] ^= 1
    (row,) = await send(here, bytes(damaged), topic="c")
    assert (row.error_code, blamed(row)) == (E.corrupt_message, [])


async def test_a_producer_that_wants_no_answer_is_cut_off_for_a_record_without_a_key(here) -> None:
    await here.make("c", cleanup=Cleanup.COMPACT)
    client = here.client()
    client.send(client.produce(keyed(None), topic="c", acks=0))
    assert client.line.closed


# -- times


@pytest.mark.parametrize("codec", [0, 3])
async def test_records_whose_time_is_out_of_bounds_are_blamed(here, codec) -> None:
    await here.make("c", timestamp_before_max_ms=1000, timestamp_after_max_ms=10)
    now = here.hub.clock.now_ms()
    times = (now, now - 1000, now - 1001, now + 10, now + 11, -1)
    rows = [(None, b"k", b"v", (), max(time, 0)) for time in times[:5]]
    (row,) = await send(here, build_batch(rows, codec=codec), topic="c")
    assert (row.error_code, blamed(row)) == (E.invalid_timestamp, [2, 4])
    fine = [rows[0], rows[1], rows[3]]
    (row,) = await send(here, build_batch(fine, codec=codec), topic="c")
    assert row.error_code is E.none


async def test_where_the_broker_writes_the_time_the_producer_s_does_not_matter(here) -> None:
    await here.make("c", timestamp_before_max_ms=0, timestamps=Timestamps.APPEND)
    (row,) = await send(here, build_batch([(None, b"k", b"v", (), 5)]), topic="c")
    assert row.error_code is E.none


# -- codecs


def stored(log) -> list[tuple[int, list[tuple]]]:
    """(codec, records) of each batch."""
    data = log.read(log.start_offset, 1 << 30)
    return [
        (
            info.attributes & ATTR_CODEC_MASK,
            decode_batch(data, info.position, inflated_records(data, info)).records(),
        )
        for info in scan_batches(data)
    ]


ROWS = [
    (None, b"k1", b"value" * 300, ((b"h", b"\0\xff"), (b"h", None)), NOW_MS),
    (None, None, None, (), NOW_MS - 7),
    (None, b"", b"", (), NOW_MS + 3),
]


@pytest.mark.parametrize("wanted", CODECS)
@pytest.mark.parametrize("size", [1, 200])
async def test_a_topic_stores_every_batch_in_its_codec_and_the_records_as_they_came(
    here, wanted, size
) -> None:
    """I6, for small batches on the loop and large ones in a thread."""
    await here.make("c", compression=Compression(codec=wanted), message_bytes_max=10_000_000)
    rows = ROWS * size
    plain = decode_batch(build_batch(rows), 0).records()
    for codec in CODEC_NAMES:
        (row,) = await send(here, build_batch(rows, codec=codec), topic="c")
        assert row.error_code is E.none
        assert row.base_offset == codec * len(rows)
    found = stored(here.log(0, "c"))
    assert [codec for codec, _ in found] == [CODECS[wanted]] * len(CODEC_NAMES)
    for _, records in found:
        assert [record[1:] for record in records] == [record[1:] for record in plain]


async def test_a_batch_that_has_the_codec_already_is_stored_byte_for_byte(here) -> None:
    await here.make("c", compression=Compression(codec="gzip", gzip_level=1))
    sent = build_batch(ROWS * 50, codec=1)
    await send(here, sent, topic="c")
    data = bytes(here.log(0, "c").read(0, 1 << 20))
    assert data[21:] == sent[21:]


async def test_levels_are_obeyed(here) -> None:
    values = [(None, b"k", b"%d" % (number**3), (), NOW_MS) for number in range(3000)]
    sizes = {}
    for level in (-131_072, 1, 19):
        name = f"c{level}"
        await here.make(name, compression=Compression(codec="zstd", zstd_level=level))
        await send(here, build_batch(values), topic=name)
        sizes[level] = here.log(0, name).log.size_bytes
    assert sizes[-131_072] > sizes[1] > sizes[19]


async def test_batches_of_one_client_keep_their_order_and_are_not_appended_twice(here) -> None:
    await here.make("c", compression=Compression(codec="zstd"))
    client = here.client()
    large = [(None, b"k", b"x" * 1000, (), NOW_MS)] * 200

    def numbered(rows, sequence: int) -> bytes:
        return build_batch(rows, producer=(77, 0, sequence))

    requests = [numbered(large, 0), numbered(ROWS, 200), numbered(large, 203), numbered(ROWS, 200)]
    client.send(*(client.produce(each, topic="c") for each in requests))
    answers = await client.wait_for(4)
    assert [rows_of(body) for _, body in answers] == [
        [(0, 0, 0)], [(0, 0, 200)], [(0, 0, 203)], [(0, 0, 200)],
    ]  # fmt: skip
    assert here.log(0, "c").end_offset == 403


async def test_a_batch_counts_as_it_came_and_as_it_is_stored(here) -> None:
    await here.make("plain", compression=Compression(codec="uncompressed"), message_bytes_max=5000)
    await here.make("packed", compression=Compression(codec="zstd"), message_bytes_max=5000)
    rows = [(None, b"k", b"x" * 1000, (), NOW_MS)] * 10
    for topic, codec in (("plain", 4), ("packed", 0)):
        (row,) = await send(here, build_batch(rows, codec=codec), topic=topic)
        assert row.error_code is E.message_too_large
        assert here.log(0, topic).end_offset == 0


async def test_another_codec_counts_from_the_next_batch_on(here) -> None:
    await here.make("c")
    await send(here, build_batch(ROWS), topic="c")
    stream = here.broker.streams.get("c")
    old: StreamConfig = stream.config
    changed = StreamConfig(
        name=old.name,
        captures=old.captures,
        partitions=old.partitions,
        durability=old.durability,
        compression=Compression(codec="lz4"),
    )
    await here.broker.streams.alter(changed)
    await send(here, build_batch(ROWS), topic="c")
    assert [codec for codec, _ in stored(here.log(0, "c"))] == [0, 3]
