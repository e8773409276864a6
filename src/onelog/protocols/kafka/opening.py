"""A produced batch that has to be opened: inflated, its records checked, compressed again.

Rules:
- A batch is refused as a whole, and the answer names the bad records (KIP-467): those without a key
  in a compacted topic, and those whose time is out of bounds. It names `BLAMED_MAX` of them at
  most, so that an answer stays small (I8).
- A batch is compressed again only if its partition wants another codec; records stay as they are
  (I6).
- Reserved headers that need a right are found here where compression hides them, and judged on the
  loop (`check_claims`).
- It blocks, so a large batch is opened in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from onelog.base.errors import InvalidRecords, MessageTooLarge, OnelogError
from onelog.base.limits import INFLATED_BYTES_MAX
from onelog.kernel import BatchInfo, Slices, check_produce_batch, decode_batch, validate_records
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.queues.claims import NO_CLAIMS, Claims, find_claims, refused_claim
from onelog.record.batch import inflated_records, set_latest_time

if TYPE_CHECKING:
    from onelog.broker import Authorizer, Principal
    from onelog.kernel.types import Buffer
    from onelog.protocols.kafka.producing import Row
    from onelog.protocols.kafka.topics import TopicPartition

BLAMED_MAX: Final = 10_000
"""Records of one batch that an answer names."""

Opened = tuple["Buffer", BatchInfo, Claims]
"""A batch as its partition wants it, and what its headers claim."""

_NO_TIME: Final = -1
_NO_KEY: Final = "the record has no key, and its topic is compacted by key"


class RecordsRefused(KafkaError):
    """A batch is refused because of some of its records: (index, reason) of each."""

    def __init__(self, code: ErrorCode, text: str, blamed: tuple[tuple[int, str], ...]) -> None:
        super().__init__(code, text)
        self.blamed = blamed


class TimeBounds(NamedTuple):
    """How far the time of a record may lie from the clock of the broker."""

    before_ms: int
    after_ms: int


class Unopened(NamedTuple):
    """A batch that has to be opened, and the slot for its row of the answer."""

    topic: str
    target: TopicPartition
    data: memoryview
    info: BatchInfo
    now_ms: int
    rows: list[Row]
    at: int
    judges_claims: bool
    """Whether to look for reserved headers that need rights."""

    def open(self, limit: int = INFLATED_BYTES_MAX) -> Opened:
        """Open it. Raises OnelogError."""
        target, info = self.target, self.info._replace(position=0)
        if info.size_bytes > target.log.message_bytes_max:
            raise MessageTooLarge(
                f"a batch of {info.size_bytes} bytes is larger than {self.topic} takes"
                f" (max.message.bytes = {target.log.message_bytes_max})"
            )
        records = inflated_records(self.data, info, limit)
        try:
            latest_ms = validate_records(self.data, 0, records, target.needs_keys)
        except InvalidRecords:
            if target.needs_keys:
                validate_records(self.data, 0, records)  # any other error concerns the whole batch
                self._refuse(records, ErrorCode.invalid_record, _has_no_key)
            raise
        if target.time_bounds is not None:
            judge = _out_of(target.time_bounds, self.now_ms)
            self._refuse(records, ErrorCode.invalid_timestamp, judge)
        claims = find_claims(self.data, 0, records) if self.judges_claims else NO_CLAIMS
        return *target.unpack(*timed(self.data, info, latest_ms), records), claims

    def try_open(self) -> Opened | OnelogError:
        """The same in a thread: returns the error instead of raising it."""
        try:
            return self.open()
        except OnelogError as error:
            return error.with_traceback(None)  # the traceback would hold the inflated bytes

    def _refuse(
        self, records: bytes | None, code: ErrorCode, judge: Callable[[Slices, int], str]
    ) -> None:
        """Raise RecordsRefused when a record is bad; `judge` returns the reason, or nothing."""
        slices = decode_batch(self.data, 0, records, False)
        blamed: list[tuple[int, str]] = []
        total = 0
        for index in range(len(slices)):
            why = judge(slices, index)
            if why:
                total += 1
                if total <= BLAMED_MAX:
                    blamed.append((index, why))
        if blamed:
            raise RecordsRefused(
                code,
                f"{total} of {len(slices)} records are refused, and with them the batch: record"
                f" {blamed[0][0]}: {blamed[0][1]}",
                tuple(blamed),
            )


def check_claims(authorizer: Authorizer, principal: Principal, topic: str, claims: Claims) -> None:
    """Raise RecordsRefused when a header claims what the principal has no right to."""
    blamed = refused_claim(authorizer, principal, topic, claims)
    if blamed is not None:
        index, why = blamed
        raise RecordsRefused(
            ErrorCode.topic_authorization_failed,
            f"record {index} is refused, and with it the batch: {why}",
            (blamed,),
        )


def _has_no_key(slices: Slices, index: int) -> str:
    return _NO_KEY if slices.key(index) is None else ""


def _out_of(bounds: TimeBounds, now_ms: int) -> Callable[[Slices, int], str]:
    first_ms, last_ms = now_ms - bounds.before_ms, now_ms + bounds.after_ms
    why = f"its time is not in {first_ms} to {last_ms} ms, which its topic asks for"

    def judge(slices: Slices, index: int) -> str:
        time_ms = slices.timestamp_ms(index)
        return "" if time_ms == _NO_TIME or first_ms <= time_ms <= last_ms else why

    return judge


def check_without_keys(
    target: TopicPartition, buffer: bytes | bytearray, first: int, last: int, error: InvalidRecords
) -> tuple[BatchInfo, int]:
    """Open a batch that was refused only because of missing keys, to find the records.

    Raises any error of the batch as a whole.
    """
    if not target.needs_keys:
        raise error
    return check_produce_batch(buffer, first, last)


def timed(data: memoryview, info: BatchInfo, latest_ms: int) -> tuple[Buffer, BatchInfo]:
    """A batch whose header has the latest time of its records: itself, or a corrected copy."""
    if latest_ms == info.max_timestamp_ms:
        return data, info
    mended = bytearray(data)
    return mended, set_latest_time(mended, info._replace(position=0), latest_ms)
