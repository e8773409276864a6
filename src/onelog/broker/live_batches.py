"""Decided batches, read from the log and made plain: a listener takes them as if they just came.

Why: the kernel hands out a plain batch in one call. Record by record, in Python, the same batch
costs the loop twenty times as much, and Kafka's transactions and compressed batches would be
handed out that way even where nobody listens.
Rules:
- Control batches and aborted transactions are left out. A committed batch loses its mark of a
  transaction, a compressed one is inflated; offsets stay, and the checksum is made anew.
- What is made plain is bounded (I8). A batch that inflates to more, that reaches beyond the limit,
  or that cannot be inflated ends the answer. If it is the first one, there is no answer, and the
  caller reads its records.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from onelog.base.errors import OnelogError
from onelog.base.ids import Offset
from onelog.broker.live_sources import LiveSource
from onelog.cursors.reader import check_batches, is_hidden
from onelog.kernel import ATTR_CODEC_MASK, ATTR_TRANSACTIONAL, BatchInfo
from onelog.log.inflating import AT_ONCE_BYTES, PACKED_BYTES
from onelog.record.batch import inflated_records, plain_batch

PLAIN_BYTES: Final = 512 * 1024
"""Bytes that are read and made plain at a time; one batch may be larger."""


class PlainBatches(NamedTuple):
    """What a read found."""

    data: bytes
    """Plain batches; empty: all that was looked at is hidden."""
    end: int
    """The offset behind the last of them."""
    following: int
    """The offset to go on from: hidden batches behind the last one are passed over."""


def read_plain(source: LiveSource, upto: int) -> PlainBatches | None:
    """Decided batches from the position of a source on, below `upto`; None: read its records.

    May raise Cold, and stops a partition that is damaged.
    """
    partition, number = source.partition, int(source.partition.id)
    position = max(source.position, int(partition.start_offset))
    fixed_until = source.stream.record.fixed_until
    if fixed_until is not None and number < len(fixed_until) and position < fixed_until[number]:
        upto = min(upto, fixed_until[number])
    data = partition.read_now(Offset(position), PLAIN_BYTES, committed=True)
    infos = check_batches(source.as_source, data, position)
    if not infos:
        return None
    aborted = partition.aborted_between(Offset(position), Offset(infos[-1].last_offset + 1))
    made: list[bytes] = []
    size, end, following = 0, position, position
    for info in infos:
        if info.last_offset < position:
            continue
        if info.last_offset >= upto or size >= PLAIN_BYTES:
            break
        if not is_hidden(info, aborted):
            plain = _made_plain(data, info)
            if plain is None:
                break
            made.append(plain)
            size += len(plain)
            end = info.last_offset + 1
        following = info.last_offset + 1
    return None if following == position else PlainBatches(b"".join(made), end, following)


def _made_plain(data: memoryview, info: BatchInfo) -> bytes | None:
    """One batch, plain; None: its records are better read one by one."""
    if not info.attributes & (ATTR_CODEC_MASK | ATTR_TRANSACTIONAL):
        return bytes(data[info.position : info.position + info.size_bytes])
    records = None
    if info.attributes & ATTR_CODEC_MASK:
        if info.size_bytes > PACKED_BYTES:
            return None
        try:
            records = inflated_records(data, info, AT_ONCE_BYTES)
        except OnelogError:
            return None
    return plain_batch(data, info, records)
