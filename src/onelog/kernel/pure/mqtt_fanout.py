"""MQTT's fan-out, interpreted: which subscribers get which record, and in which bytes.

Rules:
- Each subscriber of a topic gets a record once, however many of its subscriptions match.
- A subscriber without room falls behind: it is skipped from then on, and the caller learns its
  position, so that it reads on from the log. Nothing queues here. One that keeps its state falls
  behind at QoS 2, so that its owner saves the packet id before it goes.
- Any bytes in the reserved headers are safe: a quality of service that is not 1 or 2 is 0, a topic
  that does not fit a packet has no subscribers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onelog.base.errors import CorruptBatch
from onelog.kernel.pure.mqtt_output import encode_alias, encode_publish
from onelog.kernel.pure.records import decode_batch
from onelog.kernel.pure.scan import scan_batches
from onelog.kernel.pure.trie import TopicTrie
from onelog.kernel.pure.wire import check_topic, encode_remaining_length
from onelog.kernel.types import ATTR_CODEC_MASK, ATTR_CONTROL, ATTR_TRANSACTIONAL, TOPIC_HEADER

if TYPE_CHECKING:
    from onelog.kernel.pure.mqtt_output import MqttOutput
    from onelog.kernel.types import Buffer, Header

QOS_HEADER, RETAIN_HEADER, PUBLISHER_HEADER = b"~q", b"~r", b"~nl"
_KNOWN = (TOPIC_HEADER, QOS_HEADER, RETAIN_HEADER, PUBLISHER_HEADER)
_QOS = {b"1": 1, b"2": 2}
_PLANS_MAX = 65_536
_TOPIC_BYTES_MAX = 65_535


class _Subscription:
    __slots__ = ("identifier", "no_local", "output", "qos", "retain_as_published")

    def __init__(
        self, output: MqttOutput, qos: int, no_local: bytes, rap: bool, identifier: int
    ) -> None:
        self.output = output
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = rap
        self.identifier = identifier


class _Target:
    """One subscriber of one topic, with all its matching subscriptions."""

    __slots__ = ("identifiers", "no_local", "output", "qos", "retain_as_published")

    def __init__(self, output: MqttOutput, subscriptions: list[_Subscription]) -> None:
        self.output = output
        self.qos = max(row.qos for row in subscriptions)
        self.retain_as_published = any(row.retain_as_published for row in subscriptions)
        # `no local` counts only if all matching subscriptions have it.
        own = [row.no_local for row in subscriptions]
        self.no_local = own[0] if all(own) else b""
        numbers = sorted({row.identifier for row in subscriptions if row.identifier})
        self.identifiers = b"".join(b"\x0b" + encode_remaining_length(n) for n in numbers)


class MqttFanout:
    """Which subscribers get which record, and in which bytes.

    `properties` makes a record's v5 properties from its headers; None: it has expired. `allows`
    says whether the owner of an output may have a topic; the answer is remembered until
    `forget_plans`. When one of them raises, `deliver` returns the offset of that record, and
    `deliver_record` raises. `broken` gets outputs whose writer raised, with the error.
    """

    def __init__(
        self,
        properties: Callable[[tuple[Header, ...], int], bytes | None],
        allows: Callable[[Any, bytes], bool] | None = None,
    ) -> None:
        self._properties = properties
        self._allows = allows
        self.retained = False
        """Whether a retained record was seen since the owner set it to False."""
        self.broken: list[tuple[MqttOutput, Exception]] = []
        """Outputs whose writer raised, with the error; the reader empties it."""
        self.delivered = 0
        """Messages given to subscribers."""
        self.sent_bytes = 0
        """Bytes written for them here."""
        self._trie = TopicTrie()
        self._subscriptions: dict[int, _Subscription] = {}
        self._numbers: dict[tuple[bytes, int], int] = {}
        self._next_number = 0
        self._plans: dict[bytes, list[_Target]] = {}

    def subscribe(
        self,
        topic_filter: bytes,
        output: MqttOutput,
        qos: int,
        no_local: bytes = b"",
        retain_as_published: bool = False,
        identifier: int = 0,
    ) -> bool:
        """Add or replace a subscription. Returns whether it is new."""
        key = (topic_filter, id(output))
        number = self._numbers.get(key)
        new = number is None
        if number is None:
            number = self._next_number
            self._next_number += 1
            self._trie.add(topic_filter, number)
            self._numbers[key] = number
        self._subscriptions[number] = _Subscription(
            output, qos, no_local, retain_as_published, identifier
        )
        self._forget(topic_filter)
        return new

    def unsubscribe(self, topic_filter: bytes, output: MqttOutput) -> bool:
        """Remove a subscription. Returns False when there is none."""
        number = self._numbers.pop((topic_filter, id(output)), None)
        if number is None:
            return False
        del self._subscriptions[number]
        self._trie.remove(topic_filter, number)
        self._forget(topic_filter)
        return True

    def __len__(self) -> int:
        return len(self._subscriptions)

    def forget_plans(self) -> None:
        """The answers of `allows` may have changed."""
        self._plans.clear()

    def _forget(self, topic_filter: bytes) -> None:
        if b"+" in topic_filter or b"#" in topic_filter:
            self._plans.clear()
        else:
            self._plans.pop(topic_filter, None)

    def _plan(self, topic: bytes) -> list[_Target]:
        plan = self._plans.get(topic)
        if plan is None:
            by_output: dict[int, list[_Subscription]] = {}
            # A topic that MQTT cannot express has no subscribers.
            for number in self._trie.match(topic) if check_topic(topic) else ():
                row = self._subscriptions[number]
                if self._allows is not None and not self._allows(row.output.owner, topic):
                    continue
                by_output.setdefault(id(row.output), []).append(row)
            plan = [_Target(rows[0].output, rows) for rows in by_output.values()]
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            self._plans[topic] = plan
        return plan

    def deliver(
        self,
        data: Buffer,
        partition: int,
        start_offset: int,
        now_ms: int,
        default_topic: bytes | None = None,
    ) -> tuple[int, list[MqttOutput], list[tuple[MqttOutput, int]]]:
        """Give the records of plain batches to their subscribers.

        Returns the offset to go on from (the caller handles compressed, control and transactional
        batches), the subscribers that have bytes to write, and those that fell behind, with the
        offset of the first record that they did not get. A damaged batch raises CorruptBatch if it
        is the first one. Otherwise the result ends before it, as it does before a record that
        cannot be delivered.
        """
        touched: list[MqttOutput] = []
        fallen: list[tuple[MqttOutput, int]] = []
        following = self._deliver(
            data, partition, start_offset, now_ms, default_topic, touched, fallen
        )
        return following, self._write(touched), fallen

    def _write(self, touched: list[MqttOutput]) -> list[MqttOutput]:
        """Write the bytes of each subscriber. Returns those whose owner has to act."""
        for output in touched:
            if output.writer is not None:
                try:
                    for chunk in output.take():
                        self.sent_bytes += len(chunk)
                        output.writer(chunk)
                except Exception as error:  # noqa: BLE001
                    self.broken.append((output, error))
        return [output for output in touched if output.writer is None or output.kept]

    def _deliver(
        self,
        data: Buffer,
        partition: int,
        start_offset: int,
        now_ms: int,
        default_topic: bytes | None,
        touched: list[MqttOutput],
        fallen: list[tuple[MqttOutput, int]],
    ) -> int:
        special = ATTR_CODEC_MASK | ATTR_CONTROL | ATTR_TRANSACTIONAL
        following = start_offset
        begun = False
        for info in scan_batches(data, 0, False):
            if info.last_offset < start_offset:
                continue
            if info.attributes & special:
                return max(following, info.base_offset)
            try:
                slices = decode_batch(data, info.position, None, False)
            except CorruptBatch:
                if not begun:
                    raise
                return max(following, info.base_offset)
            begun = True
            for index in range(len(slices)):
                offset = slices.offset(index)
                topic = slices.topic(index) if default_topic is None else default_topic
                if offset >= start_offset and topic is not None:
                    record = slices.record(index)
                    try:
                        self.deliver_record(
                            topic, record[3] or b"", record[4], (partition, offset), now_ms,
                            touched, fallen,
                        )  # fmt: skip
                    except Exception:  # noqa: BLE001  the next read meets it again, alone
                        return offset
            following = info.last_offset + 1
        return following

    def deliver_record(
        self,
        topic: bytes,
        value: bytes,
        headers: tuple[Header, ...],
        place: tuple[int, int],
        now_ms: int,
        touched: list[MqttOutput],
        fallen: list[tuple[MqttOutput, int]],
    ) -> None:
        """Give one record to its subscribers; the lists grow as those of `deliver`."""
        plan = self._plan(topic) if len(topic) <= _TOPIC_BYTES_MAX else ()
        self.retained |= any(name == RETAIN_HEADER for name, _value in headers)
        if not plan:
            return
        # Of several headers of one name the first counts.
        known = dict(reversed([pair for pair in headers if pair[0] in _KNOWN]))
        qos = _QOS.get(known.get(QOS_HEADER) or b"0", 0)
        properties = b""
        if any(name not in _KNOWN for name, _value in headers):
            made = self._properties(headers, now_ms)
            if made is None:
                return  # it has expired
            properties = made
        for target in plan:
            output = target.output
            if not output.live or (
                target.no_local and target.no_local == known.get(PUBLISHER_HEADER)
            ):
                continue
            granted = min(qos, target.qos)
            flags = granted << 1 | (target.retain_as_published and RETAIN_HEADER in known)
            said = target.identifiers + properties
            alias, told = _alias(output, topic)
            packet = encode_publish(output.version, told, value, flags, 0, alias + said)
            if told and alias and 0 < output.packet_bytes_max < len(packet):
                alias = b""  # a new alias makes it longer
                packet = encode_publish(output.version, topic, value, flags, 0, said)
            if 0 < output.packet_bytes_max < len(packet):
                continue
            if granted:
                careful = granted == 2 and output.kept
                packet_id = 0 if careful else output.take_id(*place, granted)
                if packet_id == 0:
                    output.live = False
                    fallen.append((output, place[1]))
                    continue
                packet = encode_publish(output.version, told, value, flags, packet_id, alias + said)
            if told and alias:
                output.give_alias(topic)
            output.push(packet)
            self.delivered += 1
            if not output.touched:
                output.touched = True
                touched.append(output)


def _alias(output: MqttOutput, topic: bytes) -> tuple[bytes, bytes]:
    """The alias of a topic as a property, and the topic to write into the packet."""
    if not output.alias_maximum:
        return b"", topic
    known = output.alias_of(topic)
    alias = known or output.next_alias(topic)
    return encode_alias(alias), b"" if known else topic
