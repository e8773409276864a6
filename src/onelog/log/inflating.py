"""The records of batches: of large compressed ones, a courier takes them apart.

Why: inflating 16 MiB takes tens of milliseconds, and a batch of a few kilobytes may inflate to 128
MiB. On the loop every connection would wait for it.
Rules:
- A compressed batch counts as small when `AT_ONCE_BYTES` hold what it inflates to. A larger batch
  is cold: a courier inflates it, and its records are at hand while the lease is held. A reader that
  needs several passes for such a batch inflates it once.
- Inflated records are at hand up to `INFLATED_KEPT_BYTES_MAX`, and always those that the couriers
  made last (I8).
- A batch that cannot be inflated raises for its reader, on the loop, as a small one does.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from onelog.base.errors import MessageTooLarge, OnelogError, again
from onelog.base.limits import INFLATED_KEPT_BYTES_MAX
from onelog.kernel import ATTR_CODEC_MASK, HEADER_BYTES, BatchInfo, Slices, decode_batch
from onelog.record.compression import inflate
from onelog.storage.engine import Brings, Buffer, Cold, Lease

AT_ONCE_BYTES: Final = 256 * 1024
"""What a batch may inflate to where it is read."""
PACKED_BYTES: Final = 64 * 1024
"""A compressed batch that is larger is not tried at all."""
_RECORD_BYTES: Final = 64
"""What a record of an inflated batch takes beside its bytes, about."""
_KEPT_MIN: Final = 4
"""As many as there are couriers: what was made last is there when its reader is called."""
_CRC: Final = slice(17, 21)
"""Where a batch has its CRC: offsets may come to hold another batch."""

_Key = tuple[object, int, bytes]


class InflatedBatches:
    """What couriers inflated and readers need."""

    __slots__ = ("_bytes", "_lock", "_rows")

    def __init__(self) -> None:
        self._rows: OrderedDict[_Key, tuple[Slices | OnelogError, int]] = OrderedDict()
        """The records of a batch, or what is wrong with them; and how many bytes they take."""
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, key: _Key) -> Slices | None:
        """The records of a batch; None: they are not at hand. Raises what is wrong with them."""
        found = self._rows.get(key) if self._rows else None
        if found is None:
            return None
        if isinstance(found[0], OnelogError):
            raise again(found[0])
        return found[0]

    def keep(self, key: _Key, records: Slices | OnelogError, size_bytes: int) -> None:
        """Have records at hand; the oldest ones go."""
        with self._lock:
            self._drop(key)
            self._rows[key] = (records, size_bytes)
            self._bytes += size_bytes
            while self._bytes > INFLATED_KEPT_BYTES_MAX and len(self._rows) > _KEPT_MIN:
                self._bytes -= self._rows.popitem(last=False)[1][1]

    def drop(self, key: _Key) -> None:
        """Nobody needs the records of a batch any more."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: _Key) -> None:
        found = self._rows.pop(key, None)
        if found is not None:
            self._bytes -= found[1]


_kept = InflatedBatches()


class _Inflated(Lease):
    __slots__ = ("_key",)

    def __init__(self, key: _Key) -> None:
        self._key = key

    def release(self) -> None:
        """Let the records go."""
        _kept.drop(self._key)


class PackedRecords(Cold):
    """A large batch is to be inflated."""

    def __init__(self, key: _Key, codec: int, batch: memoryview) -> None:
        super().__init__(("records", *key[1:]), len(batch))
        self._key = key
        self._codec = codec
        self._batch = batch

    def fetch(self, log: Brings) -> Lease:
        """Inflate it."""
        del log
        try:
            records = inflate(self._codec, self._batch[HEADER_BYTES:])
            slices = decode_batch(self._batch, 0, records, False)
        except OnelogError as error:
            _kept.keep(self._key, again(error), 0)  # its frames hold what was inflated
        else:
            _kept.keep(self._key, slices, len(records) + len(slices) * _RECORD_BYTES)
        return _Inflated(self._key)


def slices_now(owner: object, data: Buffer, info: BatchInfo, *, check_crc: bool = False) -> Slices:
    """The records of a batch that `owner` reads; or Cold."""
    codec = info.attributes & ATTR_CODEC_MASK
    if not codec:
        return decode_batch(data, info.position, None, check_crc)
    batch = memoryview(data)[info.position : info.position + info.size_bytes]
    key = (owner, int(info.base_offset), bytes(batch[_CRC]))
    found = _kept.find(key)
    if found is not None:
        return found
    if len(batch) <= PACKED_BYTES:
        try:
            records = inflate(codec, batch[HEADER_BYTES:], AT_ONCE_BYTES)
        except MessageTooLarge:
            pass
        else:
            return decode_batch(data, info.position, records, False)
    raise PackedRecords(key, codec, batch)
