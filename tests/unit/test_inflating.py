"""Large compressed batches: a courier inflates them, and their readers get every record once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from onelog.base.errors import CorruptBatch
from onelog.broker import EARLIEST, LOCAL, Broker, StreamConfig
from onelog.kernel import HEADER_BYTES, scan_batches
from onelog.log import inflating
from onelog.log.inflating import AT_ONCE_BYTES, InflatedBatches, PackedRecords, slices_now
from onelog.record.batch import build_batch
from onelog.record.compression import GZIP, ZSTD
from onelog.storage.engine import in_place
from tests.support.brokers import client_batch, put_batch, running, topic_rows

TEXT = "x" * 1000


def packed(count: int, codec: int = ZSTD) -> bytes:
    return build_batch(topic_rows("t", *(f"{n} {TEXT}" for n in range(count))), codec=codec)


class Nobody:
    """A log that is not asked."""

    def bring(self, cold: Any) -> Any:
        raise AssertionError(cold)


@pytest.mark.parametrize("codec", [GZIP, ZSTD])
def test_a_small_batch_is_read_at_once_and_a_large_one_is_cold(codec):
    small, large = packed(10, codec), packed(1000, codec)
    assert len(slices_now(object(), small, scan_batches(small)[0])) == 10
    owner, info = object(), scan_batches(large)[0]
    with pytest.raises(PackedRecords) as raised:
        slices_now(owner, large, info)
    with raised.value.fetch(Nobody()):
        slices = slices_now(owner, large, info)
        assert len(slices) == 1000
        assert slices_now(owner, large, info) is slices, "it is inflated once"
        with pytest.raises(PackedRecords):
            slices_now(object(), large, info)  # of another log
    with pytest.raises(PackedRecords):
        slices_now(owner, large, info)


def test_a_few_bytes_that_inflate_to_very_many_are_cold():
    bomb = build_batch([(None, None, bytes(20 * AT_ONCE_BYTES), (), 0)], codec=ZSTD)
    assert len(bomb) < 4096
    with pytest.raises(PackedRecords):
        slices_now(object(), bomb, scan_batches(bomb)[0])


def test_a_thread_inflates_in_place():
    large = packed(1000)
    owner, info = object(), scan_batches(large)[0]
    assert len(in_place(Nobody(), lambda: slices_now(owner, large, info))) == 1000


def test_a_batch_that_cannot_be_inflated_raises_for_its_reader():
    large = bytearray(packed(1000))
    info = scan_batches(large)[0]
    large[HEADER_BYTES : HEADER_BYTES + 8] = bytes(8)
    owner = object()
    large += bytes(inflating.PACKED_BYTES)
    info = info._replace(size_bytes=len(large))
    with pytest.raises(PackedRecords) as raised:
        slices_now(owner, large, info)
    with raised.value.fetch(Nobody()), pytest.raises(CorruptBatch):
        slices_now(owner, large, info)


def test_what_is_kept_is_bounded_and_the_newest_stays(monkeypatch):
    monkeypatch.setattr(inflating, "INFLATED_KEPT_BYTES_MAX", 1000)
    kept, batch = InflatedBatches(), packed(1)
    slices = slices_now(object(), batch, scan_batches(batch)[0])
    for number in range(20):
        kept.keep((kept, number, b""), slices, 400)
    assert [n for n in range(20) if kept.find((kept, n, b"")) is not None] == [16, 17, 18, 19]
    for number in range(20):
        kept.drop((kept, number, b""))
    assert kept._bytes == 0


async def read_values(broker: Broker, filters: list[str], count: int) -> list[int]:
    tail = broker.cursors.open_tail(filters, start=EARLIEST, principal=LOCAL)
    found: list[int] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += [int((row.value or b"").split()[0]) for row in await tail.next(300)]
    tail.close()
    return found


@pytest.mark.parametrize("filters", [["t"], ["t", "u"], ["#"]])
async def test_a_reader_gets_every_record_of_large_batches_in_order(tmp_path, monkeypatch, filters):
    inflated: list[int] = []
    real = inflating.inflate

    def note(codec: int, data: Any, *limit: int) -> bytes:
        if not limit:
            inflated.append(threading.get_ident())
        return real(codec, data, *limit)

    monkeypatch.setattr(inflating, "inflate", note)
    async with running(tmp_path) as broker:
        stream = broker.streams.get("main")
        number = int(stream.partition_of(b"t").id)
        for first in range(0, 4000, 1000):
            rows = topic_rows("t", *(f"{n} {TEXT}" for n in range(first, first + 1000)))
            await put_batch(broker, stream, number, client_batch(rows, codec=ZSTD))
        assert await read_values(broker, filters, 4000) == list(range(4000))
    assert len(inflated) == 4, "each is inflated once, however many passes a reader needs"
    assert threading.get_ident() not in inflated


async def test_a_batch_of_many_records_is_looked_at_in_shares(tmp_path, monkeypatch):
    monkeypatch.setattr("onelog.cursors.reader.LOOK_RECORDS", 70)
    async with running(tmp_path) as broker:
        stream = await broker.streams.create(StreamConfig(name="s", captures=("s/#",)))
        rows = topic_rows("s/other", *(f"{n} " for n in range(500)))
        rows += topic_rows("s/wanted", "500 ", "501 ")
        await put_batch(broker, stream, 0, client_batch(rows, codec=ZSTD))
        assert await read_values(broker, ["s/wanted", "none"], 2) == [500, 501]
        assert await read_values(broker, ["s/wanted"], 2) == [500, 501]
