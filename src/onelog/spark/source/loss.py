"""Offsets that are gone: the error, and whether reading goes on.

Rules: data is lost when the log begins behind an offset that was to be read, when it ends before
it, or when the partition no longer exists. A gap is not loss: compaction and transactions leave
gaps, and the next record is simply further on.
"""

from __future__ import annotations

import logging
from typing import Final

from onelog.base.errors import OffsetOutOfRange
from onelog.spark.source.planning import Slice

_log: Final = logging.getLogger("onelog.spark")
_ADVICE: Final = (
    "To go on with what is there, set the option failOnDataLoss to false; to keep records for"
    " longer, raise retention.ms or retention.bytes of the topic"
)


def aged_out(topic: str, partition: int, start: int, log_start: int) -> str:
    """Records were removed before they were read."""
    return (
        f"{topic}-{partition}: offsets {start} to {log_start - 1} are gone: the log now begins at"
        f" {log_start}. They were removed by retention or deleted before they were read"
    )


def cut_off(topic: str, partition: int, start: int, log_end: int) -> str:
    """The log ends before where reading was."""
    return (
        f"{topic}-{partition}: offset {start} is gone: the log now ends at {log_end}. The topic was"
        " deleted and made anew, or the broker lost data"
    )


def vanished(topic: str, partition: int, start: int) -> str:
    """The partition is not there any more."""
    return (
        f"{topic}-{partition}: everything from offset {start} on is gone: there is no such topic or"
        " partition any more"
    )


def tell(words: str, *, fail: bool) -> None:
    """Fail, or write it down and go on."""
    if fail:
        raise OffsetOutOfRange(f"{words}. {_ADVICE}")
    _log.warning("%s; the query goes on behind it (failOnDataLoss=false)", words)


def check_start(row: Slice, first: int, last: int, *, fail: bool) -> Slice:
    """The part of a slice that the log still has. Reports a loss, or raises it if `fail`."""
    if row.start < first:
        tell(aged_out(row.topic, row.partition, row.start, first), fail=fail)
        return row.cut(first, max(row.end, first))
    if row.start > last:
        tell(cut_off(row.topic, row.partition, row.start, last), fail=fail)
        # Another log under the same name: all of it is new.
        return row.cut(first, min(row.end, last))
    return row
