"""Decided batches that the live feed makes plain hold the same records as one by one."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.broker import Broker, LiveSource, Record, StreamConfig
from onelog.kernel import decode_batch, scan_batches
from onelog.record.batch import Marker
from tests.support.brokers import client_batch, end, home_of, put_batch, running

Seen = tuple[int, bytes | None, bytes | None, tuple[Any, ...], int]
HEADERS = ((), ((b"h", b"1"),), ((b"h", None), (b"h", b"2")))

values = st.one_of(st.none(), st.binary(max_size=40))
rows = st.lists(
    st.tuples(values, values, st.sampled_from(HEADERS), st.integers(0, 10**12)),
    min_size=1,
    max_size=6,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), rows, st.sampled_from((0, 1, 4))),
        st.tuples(st.just("txn"), rows, st.sampled_from((0, 1, 4)), st.integers(1, 3)),
        st.tuples(st.just("end"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("large"), st.integers(0, 4)),
    ),
    max_size=14,
)


class Batches:
    """Takes plain batches, or leaves all of them to be read as records."""

    def __init__(self, broker: Broker, *, takes: bool) -> None:
        self.takes = takes
        self.seen: list[Seen] = []
        self.singly = 0
        broker.new_live("test").start(self)

    def deliver(self, source: LiveSource, data: bytes | bytearray) -> int:
        position = source.position
        for info in scan_batches(data):
            if not self.takes or info.attributes:
                return position
            slices = decode_batch(data, info.position, None, True)
            for index in range(len(slices)):
                offset, time, key, value, headers = slices.record(index)
                if offset >= position:
                    self.seen.append((offset, key, value, tuple(headers), time))
            position = info.last_offset + 1
        return position

    def deliver_records(self, source: LiveSource, records: list[Record]) -> None:
        self.singly += len(records)
        for row in records:
            seen = (int(row.offset), row.key, row.value, tuple(row.headers), int(row.timestamp_ms))
            self.seen.append(seen)
            source.position = row.offset + 1

    def release(self, numbers: set[int]) -> set[int]:
        del numbers
        return set()


async def play(script: list[Any], folder: Path) -> None:
    async with running(folder) as broker:
        await broker.streams.create(StreamConfig(name="s", captures=("s",)))
        stream, partition = home_of(broker, "s")
        fast, slow = Batches(broker, takes=True), Batches(broker, takes=False)
        sequences = dict.fromkeys(range(1, 4), 0)
        still_open: set[int] = set()
        for step in script:
            match step:
                case ("plain", made, codec):
                    data = client_batch([(None, *row) for row in made], codec=codec)
                    await put_batch(broker, stream, 0, data)
                case ("large", codec):
                    large = [(None, None, bytes(3000), (), 0)] * 200
                    await put_batch(broker, stream, 0, client_batch(large, codec=codec))
                case ("txn", made, codec, producer):
                    data = client_batch(
                        [(None, *row) for row in made],
                        codec=codec,
                        producer=(producer, 0, sequences[producer]),
                        transactional=True,
                    )
                    await put_batch(broker, stream, 0, data)
                    sequences[producer] += len(made)
                    still_open.add(producer)
                case ("end", producer, commit):
                    if producer in still_open:
                        still_open.discard(producer)
                        end(partition, producer, Marker.COMMIT if commit else Marker.ABORT)
        for producer in sorted(still_open):
            end(partition, producer, Marker.COMMIT)
        for _pass in range(20):  # large batches come from couriers
            await asyncio.sleep(0.002)
            if len(fast.seen) == len(slow.seen):
                break
        assert fast.seen == slow.seen
        assert slow.singly == len(slow.seen)


@given(steps)
@settings(max_examples=60, deadline=None)
def test_a_listener_of_batches_sees_what_a_listener_of_records_sees(script: list[Any]) -> None:
    """I5, I6: order, offsets, keys, values, headers and times; nothing aborted, nothing twice."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(script, Path(folder)))
