"""MQTT's fan-out, compiled: which subscribers get which record.

Rules:
- Each subscriber of a topic gets a record once, however many of its subscriptions match.
- Topics that the same subscriptions match have one plan, so that a run goes on over them.
- Any bytes in the reserved headers are safe: a quality of service that is not 1 or 2 is 0, a topic
  that does not fit a packet has no subscribers.
- Before Python is called (`properties`), the run ends, so that no pointer is held while Python may
  change things.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memset

from onelog.kernel._native.build cimport Slice
from onelog.kernel._native.crc cimport crc_of
from onelog.kernel._native.format cimport (
    BAD_HEADERS,
    CODEC_MASK,
    CONTROL,
    Head,
    Span,
    bytes_at,
    read_field,
    read_head,
    topic_of,
)
from onelog.kernel._native.mqtt_delivery cimport Delivery
from onelog.kernel._native.mqtt_output cimport MqttOutput
from onelog.kernel._native.mqtt_plan cimport Plan, Subscription, make_plan
from onelog.kernel._native.mqtt_sink cimport Packet, sink_close
from onelog.kernel._native.source cimport Source, close_source, headers_of, open_source, walk

from onelog.base.errors import CorruptBatch
from onelog.kernel._native.trie import TopicTrie
from onelog.kernel._native.wire import check_topic
from onelog.kernel.corruption import corrupt

cdef enum:
    TRANSACTIONAL = 16
    PLANS_MAX = 65536
    TOPIC_MAX = 65535


cdef inline bint _same(Slice a, Slice b) noexcept nogil:
    return a.size == b.size and (a.size <= 0 or memcmp(a.at, b.at, a.size) == 0)


cdef inline Slice _slice(bytes data) noexcept:
    cdef Slice out
    out.at = <bytes_at> PyBytes_AS_STRING(data)
    out.size = PyBytes_GET_SIZE(data)
    return out


cdef inline int _digit(Slice value) noexcept nogil:
    """A quality of service; any value but 1 and 2 is 0."""
    if value.size == 1 and (value.at[0] == c"1" or value.at[0] == c"2"):
        return value.at[0] - c"0"
    return 0


cdef bint _fact(Packet *packet, Slice name, Slice value, bint *with_qos) noexcept nogil:
    """Read a reserved header. Returns False if it is another one. The first of several counts."""
    if name.size < 2 or name.size > 3 or name.at[0] != c"~":
        return False
    if name.size == 3:
        if name.at[1] != c"n" or name.at[2] != c"l":
            return False
        if packet.publisher.at is NULL:
            packet.publisher = value
            if value.size < 0:
                packet.publisher.at = name.at  # there, and null
    elif name.at[1] == c"q":
        if not with_qos[0]:
            packet.qos = _digit(value)
        with_qos[0] = True
    elif name.at[1] == c"r":
        packet.retained = True
    elif name.at[1] != c"t":
        return False
    return True


cdef bint _read_facts(bytes_at data, const Span *span, Packet *packet) noexcept nogil:
    """Read the headers of a checked record. Returns whether there are unknown ones."""
    cdef bytes_at at = data + span.headers
    cdef bytes_at end = data + span.end
    cdef Slice name, value
    cdef int32_t size = 0
    cdef bint others = False, with_qos = False
    cdef int index
    for index in range(span.header_count):
        read_field(&at, end, 0, BAD_HEADERS, &size)
        name.at = at
        name.size = size
        at += size
        read_field(&at, end, -1, BAD_HEADERS, &size)
        value.at = at
        value.size = size
        if size > 0:
            at += size
        if not _fact(packet, name, value, &with_qos):
            others = True
    return others


cdef class Known:
    """A topic whose plan is known."""


cdef class MqttFanout:
    """Which subscribers get which record, and in which bytes.

    `properties` makes a record's v5 properties from its headers; None: it has expired. `allows`
    says whether the owner of an output may have a topic; the answer is remembered until
    `forget_plans`. When one of them raises, `deliver` returns the offset of that record, and
    `deliver_record` raises. `broken` gets outputs whose writer raised, with the error.
    """

    def __init__(self, properties, allows=None):
        self.properties = properties
        self.allows = allows
        self.broken = []
        self.trie = TopicTrie()
        self.subscriptions = {}
        self.numbers = {}
        self.plans = {}
        self.by_numbers = {}

    # -- subscriptions

    def subscribe(
        self, bytes topic_filter not None, MqttOutput output not None, int qos,
        bytes no_local not None=b"", bint retain_as_published=False, identifier=0,
    ):
        """Add or replace a subscription. Returns whether it is new."""
        cdef Subscription row = Subscription.__new__(Subscription)
        cdef tuple key = (topic_filter, id(output))
        cdef object number = self.numbers.get(key)
        cdef bint new = number is None
        if new:
            number = self.next_number
            self.next_number += 1
            self.trie.add(topic_filter, number)
            self.numbers[key] = number
        row.output = output
        row.qos = qos
        row.no_local = no_local
        row.retain_as_published = retain_as_published
        row.identifier = identifier
        self.subscriptions[number] = row
        self._forget(topic_filter)
        return new

    def unsubscribe(self, bytes topic_filter not None, MqttOutput output not None):
        """Remove a subscription. Returns False when there is none."""
        cdef object number = self.numbers.pop((topic_filter, id(output)), None)
        if number is None:
            return False
        # The row goes last: it may be the only reference to the output, and so to its id.
        self.trie.remove(topic_filter, number)
        self._forget(topic_filter)
        del self.subscriptions[number]
        return True

    def __len__(self):
        return len(self.subscriptions)

    cdef int _forget(self, bytes topic_filter) except -1:
        cdef Known known
        if b"+" in topic_filter or b"#" in topic_filter:
            self._forget_all()
            return 0
        known = self.plans.pop(topic_filter, None)
        if known is not None:
            # Only this topic matches the filter, so no other topic has this plan.
            self.by_numbers.pop(known.plan.numbers, None)
            self.generation += 1
        return 0

    cdef int _forget_all(self) except -1:
        self.generation += 1
        self.plans.clear()
        self.by_numbers.clear()
        return 0

    cdef Plan _find(self, Slice topic):
        """The plan of a topic; no object is made for a topic that was looked up before."""
        cdef uint32_t hash = crc_of(topic.at, topic.size, 0)
        cdef Slot *slot = &self.slots[hash % SLOTS]
        cdef Known known
        if slot.generation == self.generation and slot.hash == hash and slot.known is not NULL:
            known = <Known> slot.known
            if _same(_slice(known.topic), topic):
                return known.plan
        known = self._plan(PyBytes_FromStringAndSize(<const char *> topic.at, topic.size))
        slot.known = <PyObject *> known
        slot.generation = self.generation
        slot.hash = hash
        return known.plan

    cdef tuple _allowed(self, tuple numbers, bytes topic):
        """The subscriptions whose owners may have a topic."""
        cdef list found = []
        cdef Subscription row
        for number in numbers:
            row = self.subscriptions[number]
            if self.allows(row.output.owner, topic):
                found.append(number)
        return tuple(found)

    def forget_plans(self):
        """The answers of `allows` may have changed."""
        self._forget_all()

    cdef Known _plan(self, bytes topic):
        cdef PyObject *found = PyDict_GetItem(self.plans, topic)
        cdef tuple numbers
        cdef Known known
        cdef Plan plan
        if found is not NULL:
            return <Known> found
        # A topic that MQTT cannot express has no subscribers.
        numbers = self.trie.match(topic) if check_topic(topic) else ()
        if self.allows is not None:
            numbers = self._allowed(numbers, topic)
        plan = self.by_numbers.get(numbers)
        if plan is None:
            plan = make_plan(numbers, self.subscriptions)
        if len(self.plans) >= PLANS_MAX:
            self._forget_all()
        known = Known.__new__(Known)
        known.topic = topic
        known.plan = plan
        self.by_numbers[numbers] = plan
        self.plans[topic] = known
        return known

    # -- records

    def deliver(
        self, data, int32_t partition, int64_t start_offset, int64_t now_ms,
        bytes default_topic=None,
    ):
        """Give the records of plain batches to their subscribers.

        Returns the offset to go on from (the caller handles compressed, control and transactional
        batches), the subscribers that have bytes to write, and those that fell behind, with the
        offset of the first record that they did not get. A damaged batch raises CorruptBatch if it
        is the first one. Otherwise the result ends before it, as it does before a record that
        cannot be delivered.
        """
        return self.hand_out(data, partition, start_offset, now_ms, default_topic)

    cdef tuple hand_out(
        self, object data, int32_t partition, int64_t start_offset, int64_t now_ms,
        bytes default_topic,
    ):
        cdef Py_buffer view
        cdef Head head
        cdef Py_ssize_t at = 0
        cdef int code
        cdef int64_t following = start_offset
        cdef bint begun = False
        cdef Delivery delivery = Delivery.__new__(Delivery)
        delivery.touched = []
        delivery.fallen = []
        delivery.partition = partition
        self.reached = start_offset
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            while at < view.len:
                code = read_head(<bytes_at> view.buf + at, view.len - at, &head)
                if code:
                    raise corrupt(code, at)
                at += head.size
            at = 0
            while at < view.len:
                read_head(<bytes_at> view.buf + at, view.len - at, &head)
                if head.base_offset + head.last_delta >= start_offset:
                    if head.attributes & (CODEC_MASK | CONTROL | TRANSACTIONAL) or (
                        not self._batch(delivery, data, at, start_offset, now_ms, default_topic,
                                        begun)
                    ):
                        following = max(following, head.base_offset)
                        break
                    begun = True
                    following = head.base_offset + head.last_delta + 1
                    if self.reached < following:
                        following = self.reached
                        break
                at += head.size
            delivery.end()
        finally:
            PyBuffer_Release(&view)
            self.delivered += delivery.given
        return following, self._write(delivery.touched), delivery.fallen

    cdef list _write(self, list touched):
        """Write the bytes of each subscriber. Returns those whose owner has to act."""
        cdef list left = []
        cdef MqttOutput output
        cdef bytes chunk
        for output in touched:
            if output.call is not None:
                try:
                    if output.chunks is None:  # almost always
                        output.touched = False
                        if output.sink.used:
                            chunk = sink_close(&output.sink)
                            self.sent_bytes += PyBytes_GET_SIZE(chunk)
                            output.write(chunk)
                    else:
                        for chunk in output.take():
                            self.sent_bytes += PyBytes_GET_SIZE(chunk)
                            output.write(chunk)
                except Exception as error:
                    self.broken.append((output, error))
                if not output.kept:
                    continue
            left.append(output)
        return left

    cdef bint _batch(
        self, Delivery delivery, object data, Py_ssize_t at, int64_t start_offset, int64_t now_ms,
        bytes default_topic, bint begun,
    ) except -1:
        """Deliver one batch, as far as possible (`reached`). Returns False if it is damaged and
        earlier batches were delivered."""
        cdef Source source
        cdef Span *spans
        cdef int index
        try:
            open_source(&source, data, at, None, False)
            try:
                spans = walk(&source)
            except BaseException:
                close_source(&source)
                raise
        except CorruptBatch:
            if begun:
                return False
            raise
        try:
            for index in range(source.head.count):
                if source.head.base_offset + spans[index].offset_delta >= start_offset:
                    self.reached = source.head.base_offset + spans[index].offset_delta
                    self._record(delivery, &source, &spans[index], now_ms, default_topic)
            self.reached = source.head.base_offset + source.head.last_delta + 1
        except Exception:
            pass  # the next read from there meets it again, alone
        finally:
            free(spans)
            close_source(&source)
        return True

    cdef int _record(
        self, Delivery delivery, const Source *source, const Span *span, int64_t now_ms,
        bytes default_topic,
    ) except -1:
        cdef Packet packet
        cdef int32_t size = 0
        cdef Plan plan
        cdef object made = None
        cdef bint others = False
        memset(&packet, 0, sizeof(Packet))
        if default_topic is not None:
            packet.topic = _slice(default_topic)
        else:
            packet.topic.at = topic_of(source.data, span, &size)
            packet.topic.size = size
        if packet.topic.size < 0 or packet.topic.size > TOPIC_MAX:
            return 0
        if delivery.topic.at is NULL or not _same(delivery.topic, packet.topic):
            delivery.topic_plan = self._find(packet.topic)
            delivery.topic = packet.topic
        plan = delivery.topic_plan
        if span.header_count:
            others = _read_facts(source.data, span, &packet)
            self.retained |= packet.retained
        if plan.count == 0:
            return 0
        packet.value.at = source.data + span.value
        packet.value.size = max(span.value_bytes, 0)
        if others:
            delivery.end()
            delivery.topic.at = NULL
            made = self.properties(headers_of(source.data, span), now_ms)
            if made is None:
                return 0  # it has expired
            packet.properties = _slice(<bytes?> made)
        delivery.begin(plan, packet.qos)
        delivery.give(
            &packet, source.head.base_offset + span.offset_delta,
            source.end - source.data - span.start,
        )
        return 0

    def deliver_record(
        self, bytes topic not None, bytes value not None, tuple headers not None, place,
        int64_t now_ms, list touched not None, list fallen not None,
    ):
        """Give one record to its subscribers; the lists grow as those of `deliver`."""
        cdef Delivery delivery
        cdef Packet packet
        cdef Slice content
        cdef bytes name, text
        cdef object made = None, partition, offset
        cdef bint others = False, with_qos = False
        cdef Plan plan
        if PyBytes_GET_SIZE(topic) > TOPIC_MAX:
            return
        plan = self._plan(topic).plan
        if plan.count == 0:
            return
        memset(&packet, 0, sizeof(Packet))
        packet.topic = _slice(topic)
        packet.value = _slice(value)
        for name, text in headers:  # the tuple keeps them
            if text is None:
                content.at = NULL
                content.size = -1
            else:
                content = _slice(text)
            if not _fact(&packet, _slice(name), content, &with_qos):
                others = True
        if others:
            made = self.properties(headers, now_ms)
            if made is None:
                return  # it has expired
            packet.properties = _slice(<bytes?> made)
        partition, offset = place
        delivery = Delivery.__new__(Delivery)
        delivery.touched = touched
        delivery.fallen = fallen
        delivery.partition = partition
        delivery.begin(plan, packet.qos)
        delivery.give(&packet, offset, 0)
        delivery.end()
        self.delivered += delivery.given
