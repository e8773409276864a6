"""A delivery, compiled: runs of records become bytes for their subscribers.

Rules:
- A run is consecutive records of one QoS for the same subscribers. Its QoS 0 packets are encoded
  once per version, and that one object goes to all plain subscribers at the end of the run.
- Plain subscribers with packet ids get, at the end of the run, a copy of a model that is encoded
  once per version, and their own ids in it.
- A subscriber that is alone in its version, or has options of its own, is written to directly.
  Within a run a subscriber is served in one of these ways, so its order is that of the log.
- A subscriber without room falls behind at the first record that does not fit its window; one
  that keeps its state falls behind at QoS 2, so that its owner saves the packet id before it goes.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from onelog.kernel._native.build cimport Slice
from onelog.kernel._native.format cimport ol_put16
from onelog.kernel._native.mqtt_output cimport MqttOutput
from onelog.kernel._native.mqtt_plan cimport Plan, Target
from onelog.kernel._native.mqtt_sink cimport (
    REMAINING_MAX,
    Packet,
    length_bytes,
    publish_length,
    sink_close,
    sink_drop,
    sink_text,
    write_publish,
)

from onelog.base.errors import MessageTooLarge

cdef enum:
    # A first buffer is made for at most this.
    HINT_BYTES_MAX = 65536
    # A model is copied while it is in the processor's cache.
    MODEL_BYTES_MAX = 131072


cdef inline int _check_length(Py_ssize_t length) except -1:
    if length > REMAINING_MAX:
        raise MessageTooLarge(f"{length} bytes do not fit an MQTT packet ({REMAINING_MAX})")
    return 0


cdef inline Slice _none() noexcept nogil:
    cdef Slice out
    out.at = NULL
    out.size = 0
    return out


cdef bytes _name(MqttOutput output, Packet *packet):
    """Put the alias of its topic into a packet, with the topic if the peer does not know it yet."""
    cdef bytes topic = PyBytes_FromStringAndSize(
        <const char *> packet.topic.at, packet.topic.size
    )
    packet.alias = output.find_alias(topic)
    if packet.alias:
        packet.topic.size = 0
        return None
    packet.alias = output.free_alias(packet.topic.size)
    return topic if packet.alias else None


cdef class Delivery:
    """One call over the records: the run, and the subscribers that were given bytes or fell
    behind."""

    def __dealloc__(self):
        cdef int group
        for group in range(2):
            sink_drop(&self.sinks[group])
            sink_drop(&self.models[group])
        free(self.marks)

    cdef int begin(self, Plan plan, int qos) except -1:
        """Go on with the run, or end it and begin another."""
        cdef int index, group
        cdef MqttOutput output
        if self.plan is plan and self.qos == qos:
            return 0
        self.end()
        self.sharers = 0
        self.shared = plan.strong_from if qos else plan.wishes_from
        self.numbered = plan.wishes_from if qos == 1 else self.shared
        for index in range(self.numbered):
            output = <MqttOutput> plan.targets[index].output
            if not output.live:
                continue
            group = output.version == 5
            if index >= self.shared:
                self.modelled[group] = self.single[group] is not NULL
                self.single[group] = &plan.targets[index]
            else:
                self.sharers += 1
                if self.to[group] is NULL:
                    self.to[group] = &output.sink
                    self.alone[group] = <PyObject *> output
                else:
                    self.to[group] = &self.sinks[group]
                    self.alone[group] = NULL
        self.plan = plan
        self.qos = qos
        return 0

    cdef int end(self) except -1:
        """Hand out the packets of the run."""
        cdef Plan plan = self.plan
        cdef int group
        if plan is None:
            return 0
        self.plan = None
        for group in range(2):
            if self.to[group] is not NULL:
                self.to[group] = NULL
                self._end_shared(plan, group)
        if self.marks_count:
            self._end_numbered(plan)
            self.marks_count = 0
        for group in range(2):
            self.modelled[group] = False
            self.single[group] = NULL
            self.models[group].used = 0
        return 0

    cdef int _end_shared(self, Plan plan, int group) except -1:
        cdef MqttOutput output
        cdef bytes chunk
        cdef int index
        if self.alone[group] is not NULL:
            output = <MqttOutput> self.alone[group]
            return self._touch(output)
        if self.sinks[group].used == 0:
            return 0
        chunk = sink_close(&self.sinks[group])
        for index in range(self.shared):
            output = <MqttOutput> plan.targets[index].output
            if output.live and (output.version == 5) == group:
                output.share(chunk)
                self._touch(output)
        return 0

    cdef int _end_numbered(self, Plan plan) except -1:
        cdef MqttOutput output
        cdef int index, group
        for index in range(self.shared, self.numbered):
            output = <MqttOutput> plan.targets[index].output
            group = output.version == 5
            if output.live and self.modelled[group]:
                self._copy_model(output, group)
        return 0

    cdef int _copy_model(self, MqttOutput output, int group) except -1:
        """Give a subscriber its own copy, as far as its window goes."""
        cdef int count = min(self.marks_count, output.free_ids()), index
        cdef Py_ssize_t size
        cdef unsigned char *p
        if count:
            size = self.marks[count - 1].end[group]
            p = output.block(size)
            memcpy(p, sink_text(self.models[group].data), size)
            for index in range(count):
                ol_put16(
                    p + self.marks[index].id_at[group],
                    output.next_packet(self.partition, self.marks[index].offset, 1),
                )
            self.given += count
            self._touch(output)
        if count < self.marks_count:
            output.live = False
            self.fallen.append((output, self.marks[count].offset))
        return 0

    cdef int _touch(self, MqttOutput output) except -1:
        if not output.touched:
            output.touched = True
            self.touched.append(output)
        return 0

    cdef int give(self, const Packet *packet, int64_t offset, Py_ssize_t left) except -1:
        """Give a record to the run's subscribers; `left` bytes of records may follow."""
        cdef int group, index
        cdef Py_ssize_t length
        cdef Py_ssize_t hint = min(left, <Py_ssize_t> HINT_BYTES_MAX)
        cdef const Target *wishes = self.plan.targets
        self.given += self.sharers
        for group in range(2):
            if self.to[group] is not NULL:
                length = publish_length(group, packet, _none(), 0)
                _check_length(length)
                write_publish(self.to[group], group, packet, _none(), 0, 0, length, hint)
        for group in range(2):
            if self.single[group] is not NULL and not self.modelled[group]:
                self._give_one(self.single[group], packet, offset, hint)
        for index in range(self.numbered, self.plan.count):
            self._give_one(&wishes[index], packet, offset, 0)
        if self.modelled[0] or self.modelled[1]:
            self._give_model(packet, offset, hint)
        return 0

    cdef int _give_model(self, const Packet *packet, int64_t offset, Py_ssize_t hint) except -1:
        cdef Mark *mark
        cdef Py_ssize_t length, used = 0
        cdef int group, room
        cdef void *moved
        if self.marks_count == self.marks_room:
            room = 2 * self.marks_room + 64
            moved = realloc(self.marks, room * sizeof(Mark))
            if moved is NULL:
                raise MemoryError
            self.marks = <Mark *> moved
            self.marks_room = room
        mark = &self.marks[self.marks_count]
        mark.offset = offset
        for group in range(2):
            if self.modelled[group]:
                length = publish_length(group, packet, _none(), 2)
                _check_length(length)
                mark.id_at[group] = (
                    self.models[group].used + 1 + length_bytes(length) + 2 + packet.topic.size
                )
                write_publish(&self.models[group], group, packet, _none(), 2, 0, length, hint)
                mark.end[group] = self.models[group].used
                used = max(used, self.models[group].used)
        self.marks_count += 1
        return self.end() if used > MODEL_BYTES_MAX else 0

    cdef int _give_one(
        self, const Target *target, const Packet *packet, int64_t offset, Py_ssize_t hint
    ) except -1:
        cdef MqttOutput output = <MqttOutput> target.output
        cdef int granted = min(packet.qos, target.qos), flags = granted << 1, packet_id = 0
        cdef bint v5 = output.version == 5
        cdef Py_ssize_t length
        cdef Packet named
        cdef bytes topic = None
        if not output.live or (
            target.no_local.size > 0
            and target.no_local.size == packet.publisher.size
            and memcmp(target.no_local.at, packet.publisher.at, target.no_local.size) == 0
        ):
            return 0
        if packet.retained and target.retain_as_published:
            flags |= 1
        if output.alias_maximum:
            named = packet[0]
            topic = _name(output, &named)
            packet = &named
        length = publish_length(v5, packet, target.identifiers, flags)
        _check_length(length)
        if 0 < output.packet_bytes_max < 1 + length_bytes(length) + length:
            if topic is None:
                return 0
            named.alias = 0  # a new alias makes it longer
            topic = None
            length = publish_length(v5, packet, target.identifiers, flags)
            if output.packet_bytes_max < 1 + length_bytes(length) + length:
                return 0
        if granted:
            if granted < 2 or not output.kept:
                packet_id = output.next_packet(self.partition, offset, granted)
            if packet_id == 0:
                output.live = False
                self.fallen.append((output, offset))
                return 0
        write_publish(
            &output.sink, v5, packet, target.identifiers, flags, packet_id, length, hint
        )
        if topic is not None:
            output.give_alias(topic)
        self.given += 1
        return self._touch(output)
