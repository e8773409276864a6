"""MQTT's way out, compiled: a subscriber's window of packet ids, its waiting bytes, PUBLISH.

Rules:
- A packet id is in flight until the peer has answered; the order of delivery is kept.
- Bytes leave in the order in which they were queued, shared or not. Short ones are copied behind
  the open end, long ones stay one object for all receivers.
- A subscriber that has nothing in flight and nothing to write holds no memory for it.
- The first topics of a connection get its aliases and keep them: the peer always knows each alias.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint16_t
from libc.string cimport memcpy, memset

from onelog.kernel._native.build cimport Slice
from onelog.kernel._native.format cimport bytes_at, ol_get16
from onelog.kernel._native.mqtt_flight cimport (
    FLIGHT_NONE,
    PACKET_IDS,
    Entry,
    flight_add,
    flight_close,
    flight_find,
    flight_open,
    flight_remove,
)
from onelog.kernel._native.mqtt_sink cimport (
    ALIAS_BYTES,
    REMAINING_MAX,
    Packet,
    Sink,
    publish_length,
    sink_close,
    sink_drop,
    sink_space,
    write_publish,
)
from onelog.kernel._native.outbox cimport Outbox

from onelog.base.errors import InvalidRequest, LimitExceeded, MessageTooLarge

cdef enum:
    COPY_BYTES_MAX = 1024
    PUBACK = 4
    PUBREC = 5
    PUBCOMP = 7


cdef int _check_id(object packet_id) except -1:
    if not 1 <= packet_id <= PACKET_IDS:
        raise InvalidRequest(f"{packet_id} is no packet id (1 to {PACKET_IDS})")
    return 0


cdef class MqttOutput:
    """What goes to one subscriber: its window of packet ids, and bytes that wait for its socket."""

    def __cinit__(self):
        flight_open(&self.flight)

    def __init__(self, owner, int version, window):
        self.owner = owner
        self.version = version
        self.window = window

    def __dealloc__(self):
        sink_drop(&self.sink)
        flight_close(&self.flight)

    @property
    def writer(self):
        """What is called with bytes; None: the owner takes them."""
        return self.call

    @writer.setter
    def writer(self, call):
        cdef object owner = getattr(call, "__self__", None)
        self.call = call
        self.outbox = owner if isinstance(owner, Outbox) and call == owner.write else None

    cdef int write(self, bytes chunk) except -1:
        """Give bytes to the writer; there is one."""
        if self.outbox is not None:
            return self.outbox.put(chunk)
        self.call(chunk)
        return 0

    @property
    def room(self):
        """Records that still fit its window."""
        return self.free_ids()

    @property
    def pending(self):
        """Records in flight."""
        return self.flight.count

    @property
    def next_id(self):
        """The packet id that is tried next."""
        return self.flight.next_id

    cdef int free_ids(self) noexcept:
        cdef int64_t most = min(self.window, <int64_t> PACKET_IDS)
        return <int> max(<int64_t> 0, most - <int64_t> self.flight.count)

    cdef int next_packet(self, int32_t partition, int64_t offset, int qos) except -1:
        cdef int packet_id = self.flight.next_id
        cdef Entry *entry
        if self.free_ids() == 0:
            return 0
        while flight_find(&self.flight, packet_id) is not NULL:
            packet_id = packet_id % PACKET_IDS + 1
        entry = flight_add(&self.flight, packet_id)
        if entry is NULL:
            raise MemoryError
        entry.partition = partition
        entry.offset = offset
        entry.qos = <unsigned char> qos
        entry.stage = 0
        self.flight.next_id = <uint16_t> (packet_id % PACKET_IDS + 1)
        return packet_id

    def take_id(self, int32_t partition, int64_t offset, int qos):
        """A packet id for a record; 0: the window is full.

        A negative partition marks a record that the caller settles itself: it gets the PUBACK.
        """
        return self.next_packet(partition, offset, qos)

    cdef int find_alias(self, bytes topic) except -1:
        cdef object found = None if self.aliases is None else self.aliases.get(topic)
        return 0 if found is None else found

    cdef int free_alias(self, Py_ssize_t topic_bytes) except -1:
        cdef Py_ssize_t taken = 0 if self.aliases is None else len(self.aliases)
        return <int> taken + 1 if taken < self.alias_maximum and topic_bytes > ALIAS_BYTES else 0

    def alias_of(self, bytes topic not None):
        """The alias of a topic that the peer knows; 0: it knows none."""
        return self.find_alias(topic)

    def next_alias(self, bytes topic not None):
        """The alias that a topic may get; 0: all are taken, or the topic is too short to gain."""
        return self.free_alias(PyBytes_GET_SIZE(topic))

    def give_alias(self, bytes topic not None):
        """The packet with the next alias is queued: from now on the peer knows it."""
        if self.aliases is None:
            self.aliases = {}
        self.aliases[topic] = len(self.aliases) + 1

    def ack(self, int packet_id):
        """The peer has completed it (PUBACK, PUBCOMP)."""
        cdef Entry *entry = flight_find(&self.flight, packet_id)
        if entry is NULL:
            return False
        flight_remove(&self.flight, entry)
        return True

    cdef bint settle_packet(self, int packet_id) noexcept:
        cdef Entry *entry = flight_find(&self.flight, packet_id)
        if entry is not NULL:
            if entry.partition < 0 or entry.qos != 1:
                return False
            flight_remove(&self.flight, entry)
        return True

    def settle(self, int packet_id):
        """The peer sent PUBACK. Returns False when the caller has to handle it.

        That is so when the caller settles the record itself, and when its QoS is not 1.
        """
        return self.settle_packet(packet_id)

    def awaits(self, int packet_id):
        """The type of the packet that its next step waits for; 0: it is not in flight."""
        cdef Entry *entry = flight_find(&self.flight, packet_id)
        if entry is NULL:
            return 0
        if entry.qos != 2:
            return PUBACK
        return PUBCOMP if entry.stage else PUBREC

    def receive(self, int packet_id):
        """The peer has it (PUBREC). Returns False when it is not in flight with QoS 2."""
        cdef Entry *entry = flight_find(&self.flight, packet_id)
        if entry is NULL or entry.qos != 2:
            return False
        entry.stage = 1
        return True

    def in_flight(self):
        """(packet id, partition, offset, QoS, stage), in the order of delivery."""
        cdef list rows = []
        cdef uint16_t at = self.flight.first
        cdef Entry entry
        while at != FLIGHT_NONE:
            entry = self.flight.entries[at]  # a copy: the list may move the original
            rows.append(
                (entry.packet_id, entry.partition, entry.offset, entry.qos, entry.stage)
            )
            at = entry.after
        return rows

    def restore(self, rows, next_id):
        """Take over the packet ids that were in flight in an earlier connection."""
        cdef Entry *entry
        cdef int32_t partition
        cdef int64_t offset
        cdef unsigned char qos, stage
        cdef uint16_t packet_id
        _check_id(next_id)
        for row in rows:
            _check_id(row[0])
        flight_close(&self.flight)
        for packet_id, partition, offset, qos, stage in rows:
            entry = flight_find(&self.flight, packet_id)
            if entry is NULL:
                entry = flight_add(&self.flight, packet_id)
            if entry is NULL:
                raise MemoryError
            entry.partition = partition
            entry.offset = offset
            entry.qos = qos
            entry.stage = stage
        self.flight.next_id = next_id

    cdef int share(self, bytes chunk) except -1:
        """Queue bytes that others may get too."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(chunk)
        if size <= COPY_BYTES_MAX and (self.sink.used or self.chunks is not None):
            memcpy(self.block(size), PyBytes_AS_STRING(chunk), size)
            return 0
        return self._append(chunk)

    cdef unsigned char *block(self, Py_ssize_t size) except NULL:
        """Queue `size` bytes, which the caller must write at once."""
        cdef unsigned char *p
        cdef bytes chunk
        if size <= COPY_BYTES_MAX:
            p = sink_space(&self.sink, size, 0)
            self.sink.used += size
            return p
        chunk = PyBytes_FromStringAndSize(NULL, size)
        self._append(chunk)
        return <unsigned char *> PyBytes_AS_STRING(chunk)

    cdef int _append(self, bytes chunk) except -1:
        if self.chunks is None:
            self.chunks = []
        if self.sink.used:
            self.chunks.append(sink_close(&self.sink))
        self.chunks.append(chunk)
        return 0

    def push(self, bytes data not None):
        """Queue bytes behind waiting ones."""
        if data:
            self.share(data)

    def take(self):
        """All bytes that wait for the socket."""
        cdef list chunks = self.chunks
        self.chunks = None
        self.touched = False
        if chunks is None:
            chunks = []
        if self.sink.used:
            chunks.append(sink_close(&self.sink))
        return chunks


def encode_publish(
    int version, bytes topic not None, payload, int flags, packet_id=0, bytes properties=b""
):
    """A PUBLISH packet; `flags` are DUP, QoS and RETAIN as in its first byte."""
    cdef Py_buffer view
    cdef Sink sink
    cdef Packet packet
    cdef Slice none
    cdef Py_ssize_t length
    cdef uint16_t number = packet_id if flags & 6 else 0
    memset(&packet, 0, sizeof(Packet))
    memset(&none, 0, sizeof(Slice))
    memset(&sink, 0, sizeof(Sink))
    packet.topic.at = <bytes_at> PyBytes_AS_STRING(topic)
    packet.topic.size = PyBytes_GET_SIZE(topic)
    if packet.topic.size > 0xFFFF:
        raise LimitExceeded(
            f"a string of {packet.topic.size} bytes does not fit a u16 length (65535)"
        )
    packet.properties.at = <bytes_at> PyBytes_AS_STRING(properties)
    packet.properties.size = PyBytes_GET_SIZE(properties)
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        packet.value.at = <bytes_at> view.buf
        packet.value.size = view.len
        length = publish_length(version == 5, &packet, none, flags)
        if length > REMAINING_MAX:
            raise MessageTooLarge(f"{length} bytes do not fit an MQTT packet ({REMAINING_MAX})")
        write_publish(&sink, version == 5, &packet, none, flags, number, length, length + 5)
    finally:
        PyBuffer_Release(&view)
    return sink_close(&sink)


cdef bytes puback_packets(bytes_at p, Py_ssize_t count):
    """PUBACK packets in order, for publishes that were written."""
    cdef Py_ssize_t at
    cdef bytes out = PyBytes_FromStringAndSize(NULL, 4 * count)
    cdef unsigned char *to = <unsigned char *> PyBytes_AS_STRING(out)
    for at in range(count):
        to[0] = 0x40
        to[1] = 2
        to[2] = p[0]
        to[3] = p[1]
        to += 4
        p += 4
    return out


def encode_acks(bytes acks not None, dict failed=None):
    """PUBACK packets in order; `failed` has the v5 reason code of stages that could not write."""
    cdef bytes_at p = <bytes_at> PyBytes_AS_STRING(acks)
    cdef Py_ssize_t count = PyBytes_GET_SIZE(acks) // 4
    return _encode_failed(p, count, failed) if failed else puback_packets(p, count)


cdef bytes _encode_failed(bytes_at p, Py_ssize_t count, dict failed):
    cdef list out = []
    cdef Py_ssize_t at
    cdef object reason
    for at in range(count):
        reason = failed.get(ol_get16(p + 2))
        if reason is None:
            out.append(bytes((0x40, 2, p[0], p[1])))
        else:
            out.append(bytes((0x40, 3, p[0], p[1], reason)))
        p += 4
    return b"".join(out)
