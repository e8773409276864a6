"""Dead letters of queue cursors: records that a queue gave up go to a topic.

Rules: a dead letter is settled in its queue only after it is durable where it went (at least once);
one that cannot be written is tried again later. It has a new topic and never expires.
"""

from __future__ import annotations

from typing import Final

import msgspec

from onelog.base.errors import OnelogError
from onelog.base.limits import HEADERS_PER_RECORD_MAX
from onelog.broker.answers import Notice
from onelog.broker.hooks import LOCAL
from onelog.broker.publish import Publisher
from onelog.cursors.delivery import DeadLetter
from onelog.cursors.queue import QueueCursor
from onelog.record.headers import BLIND_KEYS, EXPIRY, LEFT_OUT, TOPIC
from onelog.record.record import Message

DEAD_LETTER_HEADER: Final = b"~dl"
"""Why a queue gave the record up: JSON with queue, reason, count, topic, stream, partition,
offset."""

_LEFT_BEHIND: Final = (DEAD_LETTER_HEADER, EXPIRY, TOPIC, BLIND_KEYS, LEFT_OUT)
"""Headers that a dead letter does not take over. Its publisher had the right to further keys at
the topic that it wrote to, not at this one."""
_HEADERS_MAX: Final = HEADERS_PER_RECORD_MAX - 1
_RETRY_MS: Final = 1_000


class DeadLetterWriter:
    """Writes dead letters."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.written = 0

    def serve(self, cursor: QueueCursor) -> None:
        """Take what a queue gives up, if it names a topic for it."""
        topic = cursor.settings.dead_letter_topic
        if topic is not None:
            cursor.dead_letter = lambda letter: self._write(cursor, letter, topic)

    def _write(self, cursor: QueueCursor, letter: DeadLetter, topic: str) -> None:
        record = letter.record
        why = {
            "queue": cursor.name,
            "reason": letter.reason,
            "count": letter.count,
            "topic": record.topic,
            "stream": record.stream,
            "partition": record.partition,
            "offset": record.offset,
        }
        headers = (
            (DEAD_LETTER_HEADER, msgspec.json.encode(why)),
            *(pair for pair in record.headers if pair[0] not in _LEFT_BEHIND),
        )
        message = Message(
            topic, record.value, record.key, headers[:_HEADERS_MAX], keyless=record.key is None
        )

        def done(error: OnelogError | None) -> None:
            if error is None:
                self.written += 1
                cursor.settle_dead_letter(letter.token)
            else:
                cursor.retry_dead_letter(letter.token, _RETRY_MS)

        try:
            self._publisher.publish((message,), Notice(done), principal=LOCAL)
        except OnelogError as error:
            done(error)
