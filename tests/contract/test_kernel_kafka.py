"""What both kernels promise about Kafka's Produce and Fetch on the wire; kio is the oracle."""

import importlib
import io
import struct
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId, ProducerId, TopicName, TransactionalId
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records, i8, i16, i32, i32Timedelta, i64

from onelog.base.errors import (
    CorruptBatch,
    InvalidRecords,
    InvalidRequest,
    LimitExceeded,
    ProtocolViolation,
    UnsupportedMagic,
)
from onelog.base.limits import PARTITIONS_PER_REQUEST_MAX
from onelog.kernel import crc32c, scan_batches
from onelog.kernel.types import RECORDS_COPIED_MAX
from onelog.record.batch import build_batch, inflated_records, stamp_batch

PRODUCE = range(3, 12)
FETCH = range(4, 18)
FLEXIBLE_FROM = bytes([9, 12, 255, 9])


@pytest.fixture(params=["pure", "_native"])
def kernel(request):
    """The kernel, interpreted and compiled; skipped where it was not built."""
    return pytest.importorskip(f"onelog.kernel.{request.param}", exc_type=ImportError)


def schema(name, version, side):
    return importlib.import_module(f"kio.schema.{name}.v{version}.{side}")


def fields_of(entity, **values):
    """The entity with those of the values that its version knows."""
    return entity(**{k: v for k, v in values.items() if k in entity.__dataclass_fields__})


def written(entity):
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def read_answer(frame, entity, correlation_id):
    """The entity in a frame, of which every byte was used."""
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    header, used = entity_reader(entity.__header_schema__)(frame, 4)
    assert header.correlation_id == correlation_id
    body, size = entity_reader(entity)(frame, 4 + used)
    assert 4 + used + size == len(frame)
    return body


def ms(value):
    return i32Timedelta(timedelta(milliseconds=value))


# -- frames


def frame(body):
    return struct.pack(">i", len(body)) + body


def test_frames_are_found_and_what_is_missing_is_told(kernel):
    data = b"skip" + frame(b"one") + frame(b"") + frame(b"three")
    assert kernel.split_frames(data, 4, 100) == ([(8, 11), (15, 15), (19, 24)], 24, 0)
    assert kernel.split_frames(data[:-1], 4, 100) == ([(8, 11), (15, 15)], 15, 9)
    assert kernel.split_frames(data[:18], 4, 100) == ([(8, 11), (15, 15)], 15, 0)
    assert kernel.split_frames(bytearray(data), len(data), 100) == ([], len(data), 0)
    with pytest.raises(InvalidRequest):
        kernel.split_frames(data, len(data) + 1, 100)


@pytest.mark.parametrize("length", [-1, -(1 << 31), 101, (1 << 31) - 1])
def test_a_frame_of_an_impossible_length_raises_after_the_good_ones_were_given(kernel, length):
    bad = struct.pack(">i", length)
    with pytest.raises(ProtocolViolation, match="byte 0"):
        kernel.split_frames(bad, 0, 100)
    assert kernel.split_frames(frame(b"good") + bad, 0, 100) == ([(4, 8)], 8, -1)
    with pytest.raises(ProtocolViolation, match="byte 8"):
        kernel.split_frames(frame(b"good") + bad, 8, 100)


def test_a_frame_at_the_limit_is_taken(kernel):
    assert kernel.split_frames(frame(bytes(100)), 0, 100) == ([(4, 104)], 104, 0)


# -- the header


@pytest.mark.parametrize(
    ("key", "version", "client_id", "tags"),
    [
        (0, 8, "client", b""),
        (0, 9, "client", b"\0"),
        (0, 9, None, b"\x02\x00\x02ab\x80\x01\x00"),
        (1, 11, "", b""),
        (2, 254, "ø", b""),
        (4, 99, "unknown api", b""),
        (-1, 0, None, b""),
        (0, -1, None, b""),
    ],
)
def test_a_header_is_read_by_the_table_of_flexible_versions(kernel, key, version, client_id, tags):
    raw = None if client_id is None else client_id.encode()
    size = -1 if raw is None else len(raw)
    data = b"xx" + struct.pack(">hhih", key, version, 77, size) + (raw or b"") + tags + b"body"
    got = kernel.parse_request_header(data, 2, len(data), FLEXIBLE_FROM)
    assert got == (key, version, 77, client_id, len(data) - 4)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack(">hhi", 0, 3, 1),
        struct.pack(">hhih", 0, 3, 1, -2),
        struct.pack(">hhih", 0, 3, 1, 5) + b"four",
        struct.pack(">hhih", 0, 3, 1, 2) + b"\xc3\x28",
        struct.pack(">hhih", 0, 9, 1, 0),
        struct.pack(">hhih", 0, 9, 1, 0) + b"\x01\x00\x05four",
        struct.pack(">hhih", 0, 9, 1, 0) + b"\xff" * 11,
    ],
    ids=["empty", "short", "negative", "long", "text", "no tags", "cut tag", "varint"],
)
def test_a_bad_header_is_a_violation(kernel, data):
    with pytest.raises(ProtocolViolation, match="Kafka request, byte"):
        kernel.parse_request_header(data, 0, len(data), FLEXIBLE_FROM)


# -- Produce


def produce_request(version, transactional_id, topics):
    kio = schema("produce", version, "request")
    return kio.ProduceRequest(
        transactional_id=transactional_id and TransactionalId(transactional_id),
        acks=i16(-1),
        timeout=ms(30_000),
        topic_data=tuple(
            kio.TopicProduceData(
                name=TopicName(name),
                partition_data=tuple(
                    kio.PartitionProduceData(
                        index=i32(index), records=None if data is None else Records(data)
                    )
                    for index, data in partitions
                ),
            )
            for name, partitions in topics
        ),
    )


@pytest.mark.parametrize("version", PRODUCE)
@pytest.mark.parametrize("transactional_id", [None, "", "tx-ø"])
@pytest.mark.parametrize(
    "topics",
    [
        [],
        [("t", [(0, b"batch")])],
        [("a", []), ("b" * 200, [(0, None), (1, b""), (-5, b"x" * 300)]), ("ø", [(7, b"y")])],
    ],
    ids=["none", "one", "many"],
)
def test_produce_requests_are_read_as_kio_writes_them(kernel, version, transactional_id, topics):
    body = written(produce_request(version, transactional_id, topics))
    data = b"before" + body + b"after"
    got = kernel.parse_produce(data, 6, 6 + len(body), version)
    assert got[:3] == (transactional_id, -1, 30_000)
    read = [
        (
            name,
            [(index, None if end < 0 else data[start:end]) for index, start, end in partitions],
        )
        for name, partitions in got.topics
    ]
    assert read == topics


def test_unknown_tags_of_a_produce_request_are_skipped(kernel):
    partition = struct.pack(">i", 3) + b"\x03ab" + b"\x01\x07\x01z"
    topic = b"\x02t" + b"\x02" + partition + b"\x02\x00\x00\x81\x01\x02zz"
    body = b"\0" + struct.pack(">hi", 1, 2) + b"\x02" + topic + b"\x01\x05\x03abc"
    got = kernel.parse_produce(body, 0, len(body), 9)
    assert got == (None, 1, 2, [("t", [(3, 16, 18)])])


HUGE = b"\xff\xff\xff\xff\x0f"


@pytest.mark.parametrize(
    ("version", "body", "reason"),
    [
        (3, b"\xff\xff" + struct.pack(">hi", 1, 2) + b"\x7f\xff\xff\xff", "an array"),
        (3, b"\xff\xff" + struct.pack(">hii", 1, 2, -1), "an array"),
        (3, b"\xff\xff" + struct.pack(">hii", 1, 2, 1) + b"\xff\xff" + bytes(9), "a length"),
        (3, b"\xff\xff" + struct.pack(">hiihi", 1, 2, 1, 0, 1) + bytes(7), "an array"),
        (3, b"\xff\xff" + struct.pack(">hiihiii", 1, 2, 1, 0, 1, 0, 9), "a length"),
        (3, b"\xff\xff" + struct.pack(">hiihiii", 1, 2, 1, 0, 1, 0, -2), "a length"),
        (3, b"\xff\xfe" + bytes(99), "a length"),
        (9, b"\0" + struct.pack(">hi", 1, 2) + HUGE + bytes(99), "an array"),
        (9, b"\0" + struct.pack(">hi", 1, 2) + b"\x00", "an array"),
        (9, b"\0" + struct.pack(">hi", 1, 2) + b"\x02\x00" + bytes(9), "a length"),
        (9, b"\0" + struct.pack(">hi", 1, 2) + b"\x02\x02\xff\x01\x00\x00", "not UTF-8"),
        (9, HUGE + bytes(99), "a length"),
        (9, b"\0" + struct.pack(">hi", 1, 2) + b"\x01\x01", "varint"),
    ],
)
def test_bad_produce_requests_are_violations(kernel, version, body, reason):
    with pytest.raises(ProtocolViolation, match=f"Kafka request, byte .*{reason}"):
        kernel.parse_produce(body, 0, len(body), version)


def test_a_request_names_a_bounded_number_of_partitions(kernel):
    """I8: a null partition has 8 bytes, what is made from it many more."""

    def body(count):
        partition = struct.pack(">ii", 0, -1)
        head = b"\xff\xff" + struct.pack(">hii", 1, 2, 1) + b"\0\0" + struct.pack(">i", count)
        return head + partition * count

    good = body(PARTITIONS_PER_REQUEST_MAX - 1)
    assert len(kernel.parse_produce(good, 0, len(good), 3).topics[0][1]) == (
        PARTITIONS_PER_REQUEST_MAX - 1
    )
    bad = body(PARTITIONS_PER_REQUEST_MAX)
    with pytest.raises(ProtocolViolation, match="more topics and partitions"):
        kernel.parse_produce(bad, 0, len(bad), 3)


@pytest.mark.parametrize("version", [2, 12])
def test_versions_that_are_not_known_are_refused(kernel, version):
    with pytest.raises(InvalidRequest, match="Produce version"):
        kernel.parse_produce(b"", 0, 0, version)
    with pytest.raises(InvalidRequest, match="Produce version"):
        kernel.encode_produce_response(1, version, [])
    with pytest.raises(InvalidRequest, match="Fetch version"):
        kernel.parse_fetch(b"", 0, 0, version + (1 if version < 4 else 6))
    with pytest.raises(InvalidRequest, match="Fetch version"):
        kernel.encode_fetch_response(1, version + (1 if version < 4 else 6), 0, 0, 0, [])


@pytest.mark.parametrize("version", PRODUCE)
@pytest.mark.parametrize(
    "topics",
    [
        [],
        [("t", [(0, 0, 12345, -1, 3, None, ())])],
        [
            ("a", []),
            ("ø" * 100, [(0, 2, -1, -1, -1, "it is ø damaged", ()), (1, 0, 1 << 40, 9, 5, "", ())]),
            ("c", [(i, 87, i, -1, 0, None, ((i, "ø"), (1 << 30, ""))) for i in range(50)]),
            ("d", [(0, 87, -1, -1, -1, "all", [(i, "no key") for i in range(65_537)])]),
        ],
    ],
    ids=["none", "one", "many"],
)
def test_produce_answers_are_read_by_kio(kernel, version, topics):
    kio = schema("produce", version, "response")
    frame = kernel.encode_produce_response(-9, version, topics, 250)
    got = read_answer(frame, kio.ProduceResponse, -9)

    def row(index, error_code, base_offset, append_time, log_start, message, blamed):
        moment = None if append_time < 0 else datetime.fromtimestamp(append_time / 1000, UTC)
        return fields_of(
            kio.PartitionProduceResponse,
            index=i32(index),
            error_code=ErrorCode(error_code),
            base_offset=i64(base_offset),
            log_append_time=moment,
            log_start_offset=i64(log_start),
            record_errors=tuple(
                kio.BatchIndexAndErrorMessage(batch_index=i32(at), batch_index_error_message=why)
                for at, why in blamed
            )
            if version >= 8
            else (),
            error_message=message,
        )

    assert got == kio.ProduceResponse(
        throttle_time=ms(250),
        responses=tuple(
            kio.TopicProduceResponse(
                name=TopicName(name), partition_responses=tuple(row(*r) for r in rows)
            )
            for name, rows in topics
        ),
    )


@pytest.mark.parametrize("version", [8, 11])
def test_a_string_that_is_too_long_is_not_answered(kernel, version):
    kernel.encode_produce_response(1, version, [("t" * 32767, [])])
    with pytest.raises(LimitExceeded):
        kernel.encode_produce_response(1, version, [("t" * 32768, [])])


# -- the batch of a Produce request

ROWS = [(None, b"key", b"one", (), 1000), (None, None, b"two", [(b"h", None)], 1001)]


def batch(rows=ROWS, **fields):
    return build_batch(rows, base_offset=0, tag_topics=False, **fields)


def patched(data, at, layout, *values):
    """The batch with some of its bytes changed and its CRC made right again."""
    out = bytearray(data)
    struct.pack_into(layout, out, at, *values)
    struct.pack_into(">I", out, 17, crc32c(out[21:]))
    return bytes(out)


@pytest.mark.parametrize("codec", [0, 1])
def test_a_good_batch_is_told_as_the_scan_tells_it(kernel, codec):
    data = batch(codec=codec)
    (info,) = kernel.scan_batches(data)
    got, latest_ms = kernel.check_produce_batch(b"xx" + data + b"y", 2, 2 + len(data))
    assert got == info._replace(position=2)
    assert latest_ms == 1001
    assert type(got) is type(info)


def test_the_base_offset_that_a_client_sends_does_not_matter(kernel):
    data = patched(batch(), 0, ">q", 99)
    assert kernel.check_produce_batch(data, 0, len(data))[0].count == 2


UNORDERED = [(None, b"k", b"v", (), time_ms) for time_ms in (2000, 5000, 1000)]


def test_the_latest_time_is_that_of_the_records_whatever_the_header_says(kernel):
    """KafkaJS writes the time of the last record there."""
    data = patched(batch(UNORDERED), 35, ">q", 1000)
    info, latest_ms = kernel.check_produce_batch(data, 0, len(data))
    assert (info.max_timestamp_ms, latest_ms) == (1000, 5000)
    assert kernel.validate_records(data) == 5000
    packed = patched(batch(UNORDERED, codec=1), 35, ">q", 1000)
    assert kernel.check_produce_batch(packed, 0, len(packed))[1] == 1000
    assert kernel.validate_records(packed, 0, batch(UNORDERED)[61:]) == 5000


def test_the_latest_time_of_a_stamped_batch_is_its_stamp(kernel):
    data = bytearray(batch(UNORDERED))
    stamp_batch(data, kernel.scan_batches(data)[0], 9000)
    assert kernel.validate_records(data) == 9000


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", CorruptBatch),
        (batch()[:60], CorruptBatch),
        (batch()[:-1], CorruptBatch),
        (batch()[:-1] + b"\7", CorruptBatch),
        (bytearray(batch())[:57] + b"\0\0\0\3" + batch()[61:], CorruptBatch),
        (patched(batch(), 8, ">i", 48), CorruptBatch),
        (patched(batch(), 8, ">i", -1), CorruptBatch),
        (patched(batch(), 16, ">b", 1), UnsupportedMagic),
        (bytes(16) + b"\1" + bytes(9), UnsupportedMagic),
        (batch() + batch(), InvalidRecords),
        (batch() + b"\0", InvalidRecords),
        (patched(batch(), 0, ">q", -1), InvalidRecords),
        (patched(batch(), 23, ">i", -1), InvalidRecords),
        (patched(batch(), 23, ">i", 2), InvalidRecords),
        (patched(batch(), 57, ">i", 1), InvalidRecords),
        (patched(batch(), 57, ">i", 0), InvalidRecords),
        (patched(patched(batch(), 23, ">i", 0), 57, ">i", 1), InvalidRecords),
        (patched(patched(batch(), 23, ">i", 2), 57, ">i", 3), InvalidRecords),
        (patched(patched(batch(), 23, ">i", -1), 57, ">i", 0), InvalidRecords),
        (patched(batch(), 64, ">b", 2), InvalidRecords),
        (patched(batch(), 61, ">b", 0), InvalidRecords),
        (patched(batch(codec=1), 23, ">i", 5), InvalidRecords),
    ],
    ids=[
        "nothing", "cut header", "cut batch", "bit flip", "count damaged", "length too short",
        "length negative", "magic 1", "short message of magic 1", "two batches", "a byte after it",
        "negative base offset", "negative last delta", "last delta above the count",
        "last delta above the count (2)", "no record", "bytes after the last record",
        "records missing", "empty batch", "offset delta twice", "record length",
        "compressed and not dense",
    ],
)  # fmt: skip
def test_bad_batches_are_told_apart(kernel, data, error):
    """The answer differs: send it again, use another format, or give up."""
    with pytest.raises(CorruptBatch) as caught:
        kernel.check_produce_batch(data, 0, len(data))
    assert type(caught.value) is error


def test_offset_deltas_with_a_gap_are_refused(kernel):
    """Three records at 0, 2, 3 of a batch that says it has three offsets."""
    rows = [(None, b"k", b"v", (), 1000)] * 3
    data = bytearray(batch(rows))
    size = (len(data) - 61) // 3
    for index, delta in ((1, 2), (2, 3)):
        data[61 + index * size + 3] = delta * 2
    data = patched(bytes(data), 16, ">b", 2)
    with pytest.raises(InvalidRecords, match="record 2"):
        kernel.check_produce_batch(data, 0, len(data))


def test_records_without_a_key_are_refused_where_keys_are_needed(kernel):
    data = batch()
    with pytest.raises(InvalidRecords, match=r"record 1 .* no key"):
        kernel.check_produce_batch(data, 0, len(data), True)
    keyed = batch(ROWS[:1])
    assert kernel.check_produce_batch(keyed, 0, len(keyed), True)[0].count == 1
    assert kernel.check_produce_batch(data, 0, len(data), False)[0].count == 2


def test_a_range_outside_the_buffer_is_the_callers_fault(kernel):
    data = batch()
    for start, end in ((-1, 5), (0, len(data) + 1), (5, 4)):
        for call in (
            lambda s, e: kernel.check_produce_batch(data, s, e),
            lambda s, e: kernel.parse_produce(data, s, e, 9),
            lambda s, e: kernel.parse_fetch(data, s, e, 12),
            lambda s, e: kernel.parse_request_header(data, s, e, FLEXIBLE_FROM),
        ):
            with pytest.raises(InvalidRequest, match="outside the buffer"):
                call(start, end)


# -- Fetch

IDS = {"a": uuid.UUID(int=1), "b": uuid.uuid5(uuid.NAMESPACE_DNS, "b")}


def fetch_request(version, topics, forgotten, replica_id, rack_id):
    kio = schema("fetch", version, "request")
    replica = {"replica_id": BrokerId(replica_id)}
    if version >= 15:
        replica = {"replica_state": kio.ReplicaState(replica_id=BrokerId(replica_id))}
    lost = {}
    if version >= 7:
        lost["forgotten_topics_data"] = tuple(
            fields_of(
                kio.ForgottenTopic,
                topic=TopicName(name),
                topic_id=IDS[name],
                partitions=tuple(i32(index) for index in indexes),
            )
            for name, indexes in forgotten
        )
    return fields_of(
        kio.FetchRequest,
        **replica,
        **lost,
        cluster_id="cluster",
        max_wait=ms(500),
        min_bytes=i32(1),
        max_bytes=i32(1 << 20),
        isolation_level=i8(1),
        session_id=i32(11),
        session_epoch=i32(12),
        rack_id=rack_id,
        topics=tuple(
            fields_of(
                kio.FetchTopic,
                topic=TopicName(name),
                topic_id=IDS[name],
                partitions=tuple(
                    fields_of(
                        kio.FetchPartition,
                        partition=i32(index),
                        current_leader_epoch=i32(epoch),
                        fetch_offset=i64(offset),
                        last_fetched_epoch=i32(fetched),
                        log_start_offset=i64(start),
                        partition_max_bytes=i32(size),
                        replica_directory_id=IDS["b"],
                    )
                    for index, epoch, offset, fetched, start, size in partitions
                ),
            )
            for name, partitions in topics
        ),
    )


@pytest.mark.parametrize("version", FETCH)
@pytest.mark.parametrize(
    ("topics", "forgotten"),
    [
        ([], []),
        ([("a", [(0, 1, 2, 3, 4, 5)])], []),
        (
            [("a", []), ("b", [(i, i, 1 << 50, -1, i, 1 << 20) for i in range(99)])],
            [("a", [1, 2, 3]), ("b", [])],
        ),
    ],
    ids=["none", "one", "many"],
)
def test_fetch_requests_are_read_as_kio_writes_them(kernel, version, topics, forgotten):
    body = written(fetch_request(version, topics, forgotten, 5, "räck"))
    data = b"before" + body + b"after"
    got = kernel.parse_fetch(data, 6, 6 + len(body), version)

    def named(name):
        return IDS[name].bytes if version >= 13 else name

    def known(index, epoch, offset, fetched, start, size):
        return (
            index,
            epoch if version >= 9 else -1,
            offset,
            fetched if version >= 12 else -1,
            start if version >= 5 else -1,
            size,
        )

    assert got.topics == [
        (named(name), [known(*row) for row in partitions]) for name, partitions in topics
    ]
    assert got.forgotten == (
        [(named(name), indexes) for name, indexes in forgotten] if version >= 7 else []
    )
    session = (11, 12) if version >= 7 else (0, -1)
    rack = "räck" if version >= 11 else ""
    assert got[:8] == (5, 500, 1, 1 << 20, 1, *session, rack)


def test_a_consumer_of_fetch_15_is_no_replica(kernel):
    body = written(fetch_request(15, [], [], -1, ""))
    assert kernel.parse_fetch(body, 0, len(body), 15).replica_id == -1


@pytest.mark.parametrize(
    ("version", "body", "reason"),
    [
        (4, bytes(16) + b"\0" + b"\x7f\xff\xff\xff" + bytes(99), "an array"),
        (4, bytes(17) + struct.pack(">ihi", 1, 0, 2) + bytes(31), "an array"),
        (4, bytes(17) + struct.pack(">ih", 1, -1) + bytes(9), "a length"),
        (7, bytes(17 + 8 + 4) + struct.pack(">i", -1), "an array"),
        (12, bytes(17 + 8) + HUGE + bytes(50), "an array"),
        (12, bytes(17 + 8) + b"\x01\x01\x00", "a length"),
        (13, bytes(17 + 8) + b"\x02" + bytes(15), "inside a field"),
        (15, bytes(13 + 8) + b"\x01\x01\x01" + b"\x01\x01\x02ab", "inside a field"),
        (15, bytes(13 + 8) + b"\x01\x01\x01" + b"\x01\x01\x03ab", "a length"),
    ],
)
def test_bad_fetch_requests_are_violations(kernel, version, body, reason):
    with pytest.raises(ProtocolViolation, match=f"Kafka request, byte .*{reason}"):
        kernel.parse_fetch(body, 0, len(body), version)


LARGE = b"L" * (RECORDS_COPIED_MAX + 1)


@pytest.mark.parametrize("version", FETCH)
@pytest.mark.parametrize(
    "topics",
    [
        [],
        [("a", [(0, 0, 10, 9, 1, None, -1, b"records")])],
        [("a", [(0, 0, 10, 9, 1, None, -1, LARGE)])],
        [
            ("a", []),
            (
                "b",
                [
                    (0, 0, 10, 9, 1, [(7, 3), (8, 1 << 40)], -1, LARGE),
                    (1, 1, -1, -1, -1, None, -1, None),
                    (2, 0, 5, 5, 0, [], 4, (LARGE, b"", b"small", memoryview(LARGE)[1:])),
                    (3, 0, 5, 5, 0, [], -1, []),
                ],
            ),
            ("a", [(i, 0, 1, 1, 0, None, -1, b"") for i in range(40)]),
        ],
    ],
    ids=["none", "small", "large", "many"],
)
def test_fetch_answers_are_read_by_kio(kernel, version, topics):
    kio = schema("fetch", version, "response")
    named = [(IDS[name].bytes if version >= 13 else name, rows) for name, rows in topics]
    pieces = kernel.encode_fetch_response(42, version, 3, 71, 19, named)
    got = read_answer(b"".join(pieces), kio.FetchResponse, 42)

    def row(index, error_code, high_watermark, stable, start, aborted, replica, records):
        if isinstance(records, (list, tuple)):
            records = b"".join(records)
        return fields_of(
            kio.PartitionData,
            partition_index=i32(index),
            error_code=ErrorCode(error_code),
            high_watermark=i64(high_watermark),
            last_stable_offset=i64(stable),
            log_start_offset=i64(start),
            aborted_transactions=None
            if aborted is None
            else tuple(
                kio.AbortedTransaction(producer_id=ProducerId(p), first_offset=i64(o))
                for p, o in aborted
            ),
            preferred_read_replica=BrokerId(replica),
            records=None if records is None else Records(records),
        )

    assert got == fields_of(
        kio.FetchResponse,
        throttle_time=ms(3),
        error_code=ErrorCode(71),
        session_id=i32(19),
        responses=tuple(
            fields_of(
                kio.FetchableTopicResponse,
                topic=TopicName(name),
                topic_id=IDS[name],
                partitions=tuple(row(*values) for values in rows),
            )
            for name, rows in topics
        ),
    )


def test_large_records_are_the_callers_own_buffers_and_small_ones_are_copied(kernel):
    large, small = memoryview(LARGE), memoryview(LARGE[1:])
    rows = [(0, 0, 1, 1, 0, None, -1, large), (1, 0, 1, 1, 0, None, -1, [small, large])]
    pieces = kernel.encode_fetch_response(1, 12, 0, 0, 0, [("t", rows)])
    assert [piece is large for piece in pieces] == [False, True, False, True, False]
    assert all(isinstance(piece, bytes) for piece in pieces[::2])
    assert LARGE[1:] in pieces[2]


# -- headers that need a right


NAMES = (b"~bc", b"~ui")


def test_the_headers_of_some_names_are_found_once_each_with_their_first_record(kernel):
    rows = [
        (None, b"k", b"~bc in a value", ((b"note", b"~ui"),), 1),
        (None, b"k", b"", ((b"~bc", b"[1]"), (b"~ui", None), (b"~bcd", b"no"), (b"~b", b"c")), 1),
        (None, b"k", b"", ((b"~ui", None), (b"~bc", b"[1]"), (b"~bc", b"")), 1),
    ]
    data = build_batch(rows)
    wanted = {(b"~bc", b"[1]"): 1, (b"~ui", None): 1, (b"~bc", b""): 2}
    assert kernel.find_headers(data, 0, None, NAMES, 9) == wanted
    assert kernel.find_headers(b"xyz" + data + b"tail", 3, None, NAMES, 9) == wanted
    packed = build_batch(rows, codec=1)
    records = inflated_records(packed, scan_batches(packed)[0])
    assert kernel.find_headers(packed, 0, records, NAMES, 9) == wanted
    assert kernel.find_headers(data, 0, None, (b"~x",), 9) == {}
    assert len(kernel.find_headers(data, 0, None, NAMES, 2)) == 2


def test_a_name_is_found_whatever_form_its_length_has(kernel):
    """A varint may have more bytes than it needs: the search must not rely on the shortest form."""
    data = bytearray(build_batch([(None, None, b"", ((b"~bc", b"[1]"),), 1)]))
    at = data.index(b"\x06~bc")
    data[at : at + 1] = b"\x86\x00"
    data[61] += 2  # the record's length, a varint
    data[8:12] = struct.pack(">i", len(data) - 12)
    data[17:21] = struct.pack(">I", crc32c(bytes(data[21:])))
    assert kernel.check_produce_batch(bytes(data), 0, len(data))[0].count == 1
    assert kernel.find_headers(data, 0, None, NAMES, 9) == {(b"~bc", b"[1]"): 0}
