"""Topic filters, interpreted: the rules of `+`, `#` and `$`, and records chosen by them.

Rules (MQTT5 4.7): `+` is one level, `#` is the last level and stands for the parent and all below;
neither matches a first level that begins with `$`. An empty topic matches nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.base.errors import InvalidName
from onelog.base.limits import TOPIC_BYTES_MAX, TOPIC_LEVELS_MAX
from onelog.kernel.pure.records import open_batch
from onelog.kernel.pure.scan import batch_at
from onelog.kernel.types import ATTR_CODEC_MASK, ATTR_CONTROL

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer, TopicRecord


def split_filter(text: bytes) -> list[bytes]:
    """The levels of a filter; InvalidName if it is none."""
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
    """A filter made ready to be matched against many topics."""

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
        """Whether `topic` is one that this filter names."""
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
    """Records in [start_offset, upto) whose topic matches, at most `limit`, and where to go on.

    A filter of None takes every record. `default_topic` is the topic of every record. Before a
    compressed or control batch it stops: that batch is the caller's.
    """
    view = memoryview(data).cast("B")
    found: list[TopicRecord] = []
    going_on = start_offset
    if limit <= 0:
        return found, going_on
    position = 0
    while position < len(view):
        info = batch_at(view, position, len(view))
        if info.base_offset >= upto:
            return found, max(going_on, upto)
        if info.last_offset >= start_offset:
            if info.attributes & (ATTR_CODEC_MASK | ATTR_CONTROL):
                return found, max(going_on, info.base_offset)
            batch = open_batch(view, position, None)
            for span in batch.spans:
                offset = info.base_offset + span.offset_delta
                if not start_offset <= offset < upto:
                    continue
                topic = batch.topic(span) if default_topic is None else default_topic
                if topic_filter is not None and (topic is None or not topic_filter.matches(topic)):
                    continue
                found.append(
                    (
                        topic, offset, batch.timestamp_ms(span),
                        batch.key(span), batch.value(span), batch.headers(span),
                    )
                )  # fmt: skip
                if len(found) == limit:
                    return found, offset + 1
            going_on = max(going_on, min(info.last_offset + 1, upto))
        position += info.size_bytes
    return found, going_on
