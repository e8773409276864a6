"""MQTT's fan-out, compiled: who gets which record, and in which bytes.

Rules:
- Each subscriber of a topic gets a record once, however many of its subscriptions match.
- A run is consecutive records for the same subscribers. Its QoS 0 packets are encoded once per
  version, and that one object goes to all plain subscribers at the end of the run; a subscriber
  that is alone in its version, or has a packet id or a wish of its own, is written to directly.
  Within a run a subscriber is either or, so its order is that of the log.
- Topics that the same subscriptions match have one plan, so a run goes on over them.
- A subscriber without room falls behind: it is skipped from then on and the caller is told where,
  so that it reads on from the log. Nothing queues here.
- Before Python is called (`properties`), the run ends: whatever that changes, no pointer is held.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memset

from onelog.kernel._native.build cimport Slice
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
from onelog.kernel._native.mqtt_output cimport MqttOutput
from onelog.kernel._native.mqtt_plan cimport Plan, Subscription, Target, make_plan
from onelog.kernel._native.mqtt_sink cimport (
    REMAINING_MAX,
    Packet,
    Sink,
    length_bytes,
    publish_length,
    sink_close,
    sink_drop,
    write_publish,
)
from onelog.kernel._native.source cimport Source, close_source, headers_of, open_source, walk

from onelog.base.errors import CorruptBatch, MessageTooLarge
from onelog.kernel._native.trie import TopicTrie
from onelog.kernel.corruption import corrupt

cdef enum:
    TRANSACTIONAL = 16
    PLANS_MAX = 65536
    TOPIC_MAX = 65535
    # A first buffer is made for at most this, shared between the subscribers.
    HINT_BYTES_MAX = 65536


cdef inline bint _same(Slice a, Slice b) noexcept nogil:
    return a.size == b.size and (a.size <= 0 or memcmp(a.at, b.at, a.size) == 0)


cdef inline Slice _slice(bytes data) noexcept:
    cdef Slice out
    out.at = <bytes_at> PyBytes_AS_STRING(data)
    out.size = PyBytes_GET_SIZE(data)
    return out


cdef inline int _digit(Slice value) noexcept nogil:
    """A quality of service; whatever is not 1 or 2 is 0."""
    if value.size == 1 and (value.at[0] == c"1" or value.at[0] == c"2"):
        return value.at[0] - c"0"
    return 0


cdef bint _fact(Packet *packet, Slice name, Slice value, bint *with_qos) noexcept nogil:
    """Take a reserved header in; False if it is another one. Of several the first counts."""
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
    """Read the headers of a checked record; whether there are others than the known ones."""
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


@cython.final
cdef class Delivery:
    """One call's way through the records: the run, and who was touched or fell behind."""

    cdef list touched
    cdef list fallen
    cdef int32_t partition
    cdef Plan plan
    cdef bint strong
    # Targets below `shared` share; per version (below 5, 5) where their bytes go, NULL for nobody,
    # and who gets them if that is one alone.
    cdef int shared
    cdef Sink sinks[2]
    cdef Sink *to[2]
    cdef PyObject *alone[2]
    # The topic before, in bytes that outlive the call; NULL when there is none.
    cdef Slice topic
    cdef Plan topic_plan

    def __dealloc__(self):
        sink_drop(&self.sinks[0])
        sink_drop(&self.sinks[1])

    cdef int begin(self, Plan plan, bint strong) except -1:
        """Go on with the run, or end it and begin another."""
        cdef int index, group
        cdef MqttOutput output
        if self.plan is plan and self.strong == strong:
            return 0
        self.end()
        self.shared = plan.strong_from if strong else plan.wishes_from
        self.alone[0] = self.alone[1] = NULL
        for index in range(self.shared):
            output = <MqttOutput> plan.targets[index].output
            if output.live:
                group = output.version == 5
                if self.to[group] is NULL:
                    self.to[group] = &output.sink
                    self.alone[group] = <PyObject *> output
                else:
                    self.to[group] = &self.sinks[group]
                    self.alone[group] = NULL
        self.plan = plan
        self.strong = strong
        return 0

    cdef int end(self) except -1:
        """Hand out what the run made."""
        cdef Plan plan = self.plan
        cdef MqttOutput output
        cdef bytes chunk
        cdef int index, group
        if plan is None:
            return 0
        self.plan = None
        for group in range(2):
            if self.to[group] is NULL:
                continue
            self.to[group] = NULL
            if self.alone[group] is not NULL:
                self.touch(<MqttOutput> self.alone[group])
                continue
            if self.sinks[group].used == 0:
                continue
            chunk = sink_close(&self.sinks[group])
            for index in range(self.shared):
                output = <MqttOutput> plan.targets[index].output
                if output.live and (output.version == 5) == group:
                    output.share(chunk)
                    self.touch(output)
        return 0

    cdef int touch(self, MqttOutput output) except -1:
        if not output.touched:
            output.touched = True
            self.touched.append(output)
        return 0

    cdef int give(self, const Packet *packet, int64_t offset, Py_ssize_t left) except -1:
        """Give a record to the run's subscribers; `left` bytes of records may follow."""
        cdef int group, index
        cdef Slice none
        cdef Py_ssize_t length
        cdef Py_ssize_t hint = min(left, <Py_ssize_t> HINT_BYTES_MAX)
        none.at = NULL
        none.size = 0
        for group in range(2):
            if self.to[group] is not NULL:
                length = publish_length(group, packet, none, 0)
                _check_length(length)
                write_publish(self.to[group], group, packet, none, 0, 0, length, hint)
        if self.shared < self.plan.count:
            hint //= self.plan.count
            for index in range(self.shared, self.plan.count):
                self.give_one(&self.plan.targets[index], packet, offset, hint)
        return 0

    cdef int give_one(
        self, const Target *target, const Packet *packet, int64_t offset, Py_ssize_t hint
    ) except -1:
        cdef MqttOutput output = <MqttOutput> target.output
        cdef int granted = min(packet.qos, target.qos), flags = granted << 1, packet_id = 0
        cdef bint v5 = output.version == 5
        cdef Py_ssize_t length
        if not output.live or (
            target.no_local.size > 0 and _same(target.no_local, packet.publisher)
        ):
            return 0
        if packet.retained and target.retain_as_published:
            flags |= 1
        length = publish_length(v5, packet, target.identifiers, flags)
        _check_length(length)
        if 0 < output.packet_bytes_max < 1 + length_bytes(length) + length:
            return 0
        if granted:
            packet_id = output.next_packet(self.partition, offset, granted)
            if packet_id == 0:
                output.live = False
                self.fallen.append((output, offset))
                return 0
        write_publish(
            &output.sink, v5, packet, target.identifiers, flags, packet_id, length, hint
        )
        return self.touch(output)


cdef inline int _check_length(Py_ssize_t length) except -1:
    if length > REMAINING_MAX:
        raise MessageTooLarge(f"{length} bytes do not fit an MQTT packet ({REMAINING_MAX})")
    return 0


cdef class MqttFanout:
    """Who gets which record, and in which bytes."""

    cdef object properties
    cdef object trie
    cdef dict subscriptions
    cdef dict numbers
    cdef int64_t next_number
    cdef dict plans
    cdef dict by_numbers

    def __init__(self, properties):
        self.properties = properties
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
        """Add or replace a subscription; whether it is new."""
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
        """Remove a subscription; False when there is none."""
        cdef object number = self.numbers.pop((topic_filter, id(output)), None)
        if number is None:
            return False
        # The row goes last: it may be what keeps the output, and so its id, alive.
        self.trie.remove(topic_filter, number)
        self._forget(topic_filter)
        del self.subscriptions[number]
        return True

    def __len__(self):
        return len(self.subscriptions)

    cdef int _forget(self, bytes topic_filter) except -1:
        cdef Plan plan
        if b"+" in topic_filter or b"#" in topic_filter:
            self.plans.clear()
            self.by_numbers.clear()
            return 0
        plan = self.plans.pop(topic_filter, None)
        if plan is not None:
            # Only this topic matches the filter, so no other topic has this plan.
            self.by_numbers.pop(plan.numbers, None)
        return 0

    cdef Plan _plan(self, bytes topic):
        cdef PyObject *found = PyDict_GetItem(self.plans, topic)
        cdef tuple numbers
        cdef Plan plan
        if found is not NULL:
            return <Plan> found
        numbers = self.trie.match(topic)
        plan = self.by_numbers.get(numbers)
        if plan is None:
            plan = make_plan(numbers, self.subscriptions)
        if len(self.plans) >= PLANS_MAX:
            self.plans.clear()
            self.by_numbers.clear()
        self.by_numbers[numbers] = plan
        self.plans[topic] = plan
        return plan

    # -- records

    def deliver(
        self, data, int32_t partition, int64_t start_offset, int64_t now_ms,
        bytes default_topic=None,
    ):
        """Give the records of plain batches to their subscribers.

        Answers the offset to go on from (a compressed, control or transactional batch is the
        caller's), the subscribers that have bytes to write, and those that fell behind with the
        offset of the first record that they did not get. A damaged batch raises CorruptBatch if
        it is the first one; if not, the answer ends before it.
        """
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
                at += head.size
            delivery.end()
        finally:
            PyBuffer_Release(&view)
        return following, delivery.touched, delivery.fallen

    cdef bint _batch(
        self, Delivery delivery, object data, Py_ssize_t at, int64_t start_offset, int64_t now_ms,
        bytes default_topic, bint begun,
    ) except -1:
        """Deliver one batch; False if it is damaged and others went before."""
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
                    self._record(delivery, &source, &spans[index], now_ms, default_topic)
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
            delivery.topic_plan = self._plan(
                PyBytes_FromStringAndSize(<const char *> packet.topic.at, packet.topic.size)
            )
            delivery.topic = packet.topic
        plan = delivery.topic_plan
        if plan.count == 0:
            return 0
        packet.value.at = source.data + span.value
        packet.value.size = max(span.value_bytes, 0)
        if span.header_count:
            others = _read_facts(source.data, span, &packet)
        if others:
            delivery.end()
            delivery.topic.at = NULL
            made = self.properties(headers_of(source.data, span), now_ms)
            if made is None:
                return 0  # it has expired
            packet.properties = _slice(<bytes?> made)
        delivery.begin(plan, packet.qos > 0)
        delivery.give(
            &packet, source.head.base_offset + span.offset_delta,
            source.end - source.data - span.start,
        )
        return 0

    def deliver_record(
        self, bytes topic not None, bytes value not None, tuple headers not None, place,
        int64_t now_ms, list touched not None, list fallen not None,
    ):
        """Give one record to its subscribers; the lists grow as those of `deliver` do."""
        cdef Delivery delivery
        cdef Packet packet
        cdef Slice content
        cdef bytes name, text
        cdef object made = None, partition, offset
        cdef bint others = False, with_qos = False
        cdef Plan plan
        if PyBytes_GET_SIZE(topic) > TOPIC_MAX:
            return
        plan = self._plan(topic)
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
        delivery.begin(plan, packet.qos > 0)
        delivery.give(&packet, offset, 0)
        delivery.end()
