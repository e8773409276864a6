"""Topic filters, interpreted: the rules of `+`, `#` and `$`, and records chosen by them.

Rules (MQTT5 4.7): `+` is one level, `#` is the last level and stands for the parent and all below;
neither matches a first level that begins with `$`. An empty topic matches nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from onelog.base.errors import InvalidName
from onelog.base.limits import TOPIC_BYTES_MAX, TOPIC_LEVELS_MAX
from onelog.kernel.pure.records import Batch, walk
from onelog.kernel.pure.scan import batch_at
from onelog.kernel.types import ATTR_CODEC_MASK, ATTR_CONTROL, HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onelog.kernel.types import BatchInfo, Buffer, TopicRecord


def split_filter(text: bytes) -> list[bytes]:
    """The levels of a filter. Raises InvalidName."""
    if not 0 < len(text) <= TOPIC_BYTES_MAX:
        raise InvalidName(f"a filter has 1 to {TOPIC_BYTES_MAX} bytes, not {len(text)}")
    levels = text.split(b"/")
    if len(levels) > TOPIC_LEVELS_MAX:
        raise InvalidName(f"a filter has at most {TOPIC_LEVELS_MAX} levels, not {len(levels)}")
    for at, level in enumerate(levels):
        if len(level) > 1 and (b"+" in level or b"#" in level):
            raise InvalidName(f"filter {text!r}: a wildcard stands alone in its level")
        if level == b"#" and at != len(levels) - 1:
            raise InvalidName(f"filter {text!r}: '#' is the last level")
    return levels


class TopicFilter:
    """A compiled filter, for many topics."""

    __slots__ = ("_levels", "exact", "filter")

    filter: bytes
    """The filter as it was given."""
    exact: bool
    """No wildcard: it matches one topic."""

    def __init__(self, filter: bytes) -> None:  # noqa: A002
        self._levels = split_filter(filter)
        self.filter = filter
        self.exact = b"+" not in self._levels and b"#" not in self._levels

    def matches(self, topic: bytes) -> bool:
        """Whether this filter matches `topic`."""
        if self.exact:
            return topic == self.filter
        if not topic or (topic[:1] == b"$" and self._levels[0] in (b"+", b"#")):
            return False
        levels = topic.split(b"/")
        for at, wanted in enumerate(self._levels):
            if wanted == b"#":
                return True
            if at == len(levels) or wanted not in (b"+", levels[at]):
                return False
        return len(levels) == len(self._levels)


def select_records(
    data: Buffer,
    topic_filter: TopicFilter | None,
    start_offset: int,
    upto: int,
    limit: int,
    default_topic: bytes | None = None,
) -> tuple[list[TopicRecord], int]:
    """Records in [start_offset, upto) whose topic matches, at most `limit`, and the offset to go on
    from.

    A filter of None takes every record. `default_topic` is the topic of every record. It stops
    before a compressed or control batch, which the caller handles.
    """
    view = memoryview(data).cast("B")
    found: list[TopicRecord] = []
    going_on = start_offset
    wanted = _Wanted(topic_filter, start_offset, upto, default_topic)
    position = 0 if limit > 0 else len(view)
    while position < len(view):
        info = batch_at(view, position, len(view))
        if info.base_offset >= upto:
            return found, max(going_on, upto)
        if info.last_offset >= start_offset:
            if info.attributes & (ATTR_CODEC_MASK | ATTR_CONTROL):
                return found, max(going_on, info.base_offset)
            for row in wanted.records(info, view):
                found.append(row)
                if len(found) == limit:
                    return found, row[1] + 1
            going_on = max(going_on, min(info.last_offset + 1, upto))
        position += info.size_bytes
    return found, going_on


class _Wanted(NamedTuple):
    """The records that `select_records` looks for."""

    topic_filter: TopicFilter | None
    start_offset: int
    upto: int
    default_topic: bytes | None

    def records(self, info: BatchInfo, view: memoryview) -> Iterator[TopicRecord]:
        """The wanted records of one plain batch."""
        default, names = self.default_topic, self.topic_filter
        if default is not None and names is not None and not names.matches(default):
            return
        batch = Batch(info, view, [])
        end = info.position + info.size_bytes
        for span in walk(info, view, info.position + HEADER_BYTES, end):
            offset = info.base_offset + span.offset_delta
            if not self.start_offset <= offset < self.upto:
                continue
            topic = batch.topic(span) if default is None else default
            if names is not None and (topic is None or not names.matches(topic)):
                continue
            yield (
                topic,
                offset,
                batch.timestamp_ms(span),
                batch.key(span),
                batch.value(span),
                batch.headers(span),
            )


def pick_records(
    data: Buffer, offsets: list[int], default_topic: bytes | None = None
) -> list[TopicRecord]:
    """The records at ascending offsets of the one plain batch in `data`; missing ones are left out.

    The CRC of the batch was checked: records in front are skipped by their lengths, records behind
    the last offset are not looked at.
    """
    if not offsets:
        return []
    upto = offsets[-1] + 1
    wanted = set(offsets)
    rows, _next = select_records(data, None, offsets[0], upto, upto, default_topic)
    return [row for row in rows if row[1] in wanted]
