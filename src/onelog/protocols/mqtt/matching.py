"""Which subscriptions of a session match a record that was read from the log, and its PUBLISH.

Rules: overlapping subscriptions give one message, at the highest QoS, with every identifier (MQTT5
3.3.4). A subscription that was made while the session read older records begins later.
"""

from __future__ import annotations

from onelog.broker import Record
from onelog.kernel import TopicTrie
from onelog.protocols.mqtt.mapping import from_record
from onelog.protocols.mqtt.packets import Publish
from onelog.protocols.mqtt.subscribed import Subscribed
from onelog.record.headers import PUBLISHER, find_header


class Matcher:
    """The plain subscriptions of a session, as they are now."""

    def __init__(self, client_id: str, subscriptions: dict[str, Subscribed]) -> None:
        self._own = client_id.encode()
        self._rows = list(subscriptions.values())
        row = self._rows[0] if len(self._rows) == 1 else None
        plain = row is not None and not (row.no_local or row.retain_as_published or row.identifier)
        self._only = row if plain else None
        """The only subscription, when it takes every record that was read for it unchanged."""
        self._trie = TopicTrie()
        for number, text in enumerate(subscriptions):
            self._trie.add(text.encode(), number)

    def publish(self, key: tuple[str, int], record: Record, now_ms: int) -> Publish | None:
        """The PUBLISH of a record of a source; None: no subscription matches, or it has expired."""
        only = self._only
        if only is not None and not only.since:
            return from_record(record, now_ms=now_ms, qos_max=only.qos, retain=False, packet_id=1)
        matching = self._matching(key, record)
        if not matching:
            return None
        return from_record(
            record,
            now_ms=now_ms,
            qos_max=max(row.qos for row in matching),
            retain=None if any(row.retain_as_published for row in matching) else False,
            packet_id=1,
            subscription_ids=tuple(sorted({row.identifier for row in matching if row.identifier})),
        )

    def _matching(self, key: tuple[str, int], record: Record) -> list[Subscribed]:
        publisher = find_header(record.headers, PUBLISHER)
        return [
            row
            for row in (self._rows[number] for number in self._trie.match(record.topic.encode()))
            if not (row.no_local and publisher == self._own)
            and not any(
                (since.stream_id, since.partition) == key and record.offset < since.offset
                for since in row.since
            )
        ]
