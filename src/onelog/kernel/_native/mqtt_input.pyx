"""MQTT's way in, compiled: one connection's bytes become staged records and acknowledgements.

Rules:
- Packets are read where they were received. Only a packet that a read cut in two is copied, and
  only as far as it has come; its buffer grows with the bytes received, not with the length in the
  header, and is freed when the packet is whole. Pending bytes are `rest`, then `held` from
  `position` on.
- A packet is done when it is staged, settled or returned: when `resolve` raises, it comes again.
- A topic like the last one is not looked up again within one call. Between calls the caller may
  change the routes.
- Per plain PUBLISH no Python object is made.
"""

from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from onelog.kernel._native.clock cimport read_clock
from onelog.kernel._native.build cimport ADD_MEMORY, RawHeaders, Slice
from onelog.kernel._native.format cimport bytes_at, ol_get16
from onelog.kernel._native.mqtt_acks cimport (
    STAGES_MAX,
    MqttAnswers,
    MqttPass,
    need_ack_space,
    note_ack,
)
from onelog.kernel._native.mqtt_output cimport MqttOutput
from onelog.kernel._native.stage cimport MqttRoute, Stage

from onelog.base.errors import InvalidRequest, MessageTooLarge, OnelogError, ProtocolViolation
from onelog.kernel._native.wire import encode_varint

cdef enum:
    REST_BYTES_MIN = 64
    TOPIC_BYTES_KEPT = 128

cdef struct Frame:
    # One whole packet: its first byte and its body.
    bytes_at body
    Py_ssize_t size
    unsigned char first

cdef bytes _QOS = b"\x04~q\x021"
cdef bytes _RETAIN = b"\x04~r\x021"
cdef bytes _PLAIN = _QOS + _RETAIN + _QOS


cdef inline int _length(bytes_at p, Py_ssize_t left, uint32_t *size) noexcept nogil:
    """Bytes of the fixed header, with its length in `size`; 0: bytes are missing, -1: malformed."""
    cdef int index
    size[0] = 0
    for index in range(4):
        if 1 + index >= left:
            return 0
        size[0] |= <uint32_t> (p[1 + index] & 0x7F) << (7 * index)
        if p[1 + index] < 0x80:
            return 2 + index
    return -1


cdef class MqttInput(MqttAnswers):
    """One connection's byte stream."""

    cdef public dict routes
    cdef public object resolve
    cdef public int version
    cdef readonly int64_t staged
    # Bytes of the topics and payloads of these records.
    cdef readonly int64_t staged_bytes
    # Called with the messages and bytes that a read staged, if they are to be counted.
    cdef public object charge
    cdef public Py_ssize_t packet_bytes_max
    # How many publishes may be unanswered; one too many is returned; 0: any number.
    cdef public Py_ssize_t receive_maximum
    cdef bint feeding

    cdef bytes held
    cdef Py_ssize_t position
    cdef unsigned char *rest
    cdef Py_ssize_t rest_used
    cdef Py_ssize_t rest_room

    cdef bytes publisher_name
    # The headers of a record by QoS and retain, in the record's own encoding.
    cdef bytes blocks
    cdef RawHeaders headers[4]

    # The topic of the packet before, in the bytes that are being read; NULL: there is none.
    cdef bytes_at recent_topic
    cdef Py_ssize_t recent_bytes
    cdef MqttRoute recent
    # The topic that was looked up last, if it is short: a client that has one topic needs no new
    # object for it, nor its hash.
    cdef bytes last_topic

    # State of a connection in the loop's passes.
    cdef public bint heard
    cdef public bint suspended
    cdef Py_ssize_t turn_bytes

    def __init__(
        self, MqttOutput output not None, dict routes not None, resolve,
        Py_ssize_t packet_bytes_max,
    ):
        self.output = output
        self.routes = routes
        self.resolve = resolve
        self.packet_bytes_max = packet_bytes_max
        self.publisher = b""

    def __dealloc__(self):
        free(self.rest)

    @property
    def publisher(self):
        """When set, records carry it, so that `no local` subscriptions know their own."""
        return self.publisher_name

    @publisher.setter
    def publisher(self, bytes name not None):
        cdef bytes own = b"\x06~nl" + encode_varint(len(name)) + name if name else b""
        cdef bytes_at at
        cdef int kind
        # Three of the four are ends of one text; the fourth stands after it.
        self.blocks = b"".join((_QOS, _RETAIN, own, _QOS, own)) if name else _PLAIN
        self.publisher_name = name
        at = <bytes_at> PyBytes_AS_STRING(self.blocks)
        self.headers[0].at = at + 10
        self.headers[1].at = at + 10 + len(own)
        self.headers[2].at = at + 5
        self.headers[3].at = at
        for kind in range(4):
            self.headers[kind].count = (kind & 1) + (kind >> 1) + (1 if name else 0)
            self.headers[kind].size = 5 * ((kind & 1) + (kind >> 1)) + len(own)
            self.headers[kind].shadows_topic = False

    # -- a connection of the loop

    def join(self, owner, MqttPass turn not None):
        """Let `receive` serve a connection: `owner` handles packets that are not plain."""
        self.owner = owner
        self.turn = turn

    def receive(self, data):
        """Take a read. The owner is called only for packets that are not plain."""
        self.take_bytes(data if PyBytes_CheckExact(data) else bytes(data))

    cdef int take_bytes(self, bytes data) except -1:
        cdef MqttPass turn = self.turn
        cdef bint clean = not turn.dirty
        cdef object event
        cdef int64_t staged = self.staged, staged_bytes = self.staged_bytes
        if self.suspended:
            self.owner.keep_unread(data)
            return 0
        self.heard = True
        if clean:
            turn.now_ms = read_clock(turn.clock)
        try:
            event = self._feed_bytes(data, turn.now_ms)
            if event is not None:
                self.owner.take_packets(event)
        except OnelogError as error:
            self.owner.fail(error)
        finally:  # also after an error, staged records are written
            self._finish(clean)
        turn.received_bytes += PyBytes_GET_SIZE(data)
        if self.staged != staged:
            turn.received_messages += self.staged - staged
            if self.charge is not None:
                self.charge(self.staged - staged, self.staged_bytes - staged_bytes)
        self.turn_bytes += PyBytes_GET_SIZE(data)
        if self.turn_bytes >= turn.bytes_max:
            self.turn_bytes = 0
            self.owner.rest()
        return 0

    def finish(self, bint clean=True):
        """Have staged records written; let a session that reads the log go on."""
        self._finish(clean)

    cdef int _finish(self, bint clean) except -1:
        cdef MqttPass turn = self.turn
        if clean and turn.dirty:
            turn.tick_soon()
        if not self.output.live:
            self.owner.catch_up()
        return 0

    # -- bytes in

    def feed(self, data, int64_t now_ms):
        """Take received bytes. Returns the next packet that the caller has to handle; None: all are
        done."""
        return self._feed_bytes(data if PyBytes_CheckExact(data) else bytes(data), now_ms)

    cdef object _feed_bytes(self, bytes data, int64_t now_ms):
        if self.feeding:
            raise InvalidRequest("this connection is being fed: `resolve` must not feed it")
        if PyBytes_GET_SIZE(data):
            self.held = data if self.held is None else self.held[self.position :] + data
            self.position = 0
        self.feeding = True
        try:
            return self._feed(now_ms)
        finally:
            self.feeding = False
            self._forget_recent()

    cdef void _forget_recent(self) noexcept:
        self.recent_topic = NULL
        self.recent = None

    cdef object _feed(self, int64_t now_ms):
        cdef Frame frame
        cdef bytes_at data
        cdef Py_ssize_t size, total
        cdef object packet
        if self.rest_used:
            if not self._complete(&frame):
                self.held = None
                return None
            packet = self._handle(&frame, now_ms)
            self._forget_recent()  # it lies in memory that is freed now
            self._drop_rest()
            if packet is not None:
                self._drop_held()
                return packet
        if self.held is None:
            return None
        data = <bytes_at> PyBytes_AS_STRING(self.held)
        size = PyBytes_GET_SIZE(self.held)
        while True:
            total = self._frame(data + self.position, size - self.position, &frame)
            if total > size - self.position or total == 0:
                break
            packet = self._handle(&frame, now_ms)
            self.position += total
            if packet is not None:
                self._drop_held()
                return packet
        self._keep(data + self.position, size - self.position, total)
        self.held = None
        return None

    cdef Py_ssize_t _frame(self, bytes_at p, Py_ssize_t left, Frame *frame) except -1:
        """Size of the packet at `p`, complete or not; 0: its length is incomplete."""
        cdef uint32_t size
        cdef int head = _length(p, left, &size)
        if head <= 0:
            if head < 0:
                raise ProtocolViolation("the remaining length of a packet has more than four bytes")
            return 0
        if head + <Py_ssize_t> size > self.packet_bytes_max:
            raise MessageTooLarge(
                f"a packet of {head + <Py_ssize_t> size} bytes is larger than"
                f" {self.packet_bytes_max}"
            )
        frame.first = p[0]
        frame.body = p + head
        frame.size = size
        return head + <Py_ssize_t> size

    # -- a packet that a read cut in two

    cdef bint _complete(self, Frame *frame) except -1:
        """Copy the rest of the packet into `rest`. Returns whether it is whole."""
        cdef Py_ssize_t left, total, lacks
        while True:
            total = self._frame(self.rest, self.rest_used, frame)
            lacks = total - self.rest_used if total else 1
            if lacks == 0:
                return True
            left = 0 if self.held is None else PyBytes_GET_SIZE(self.held) - self.position
            if left == 0:
                return False
            if lacks > left:
                lacks = left
            self._keep(
                <bytes_at> PyBytes_AS_STRING(self.held) + self.position, lacks, total
            )
            self.position += lacks

    cdef int _keep(self, bytes_at p, Py_ssize_t size, Py_ssize_t total) except -1:
        """Copy bytes of a packet of `total` bytes (0: not known) behind `rest`."""
        cdef Py_ssize_t needed = self.rest_used + size, room
        cdef void *moved
        if size == 0:
            return 0
        if needed > self.rest_room:
            room = max(max(needed, 2 * self.rest_room), <Py_ssize_t> REST_BYTES_MIN)
            if total:
                room = max(needed, min(room, total))
            moved = realloc(self.rest, room)
            if moved is NULL:
                raise MemoryError
            self.rest = <unsigned char *> moved
            self.rest_room = room
        memcpy(self.rest + self.rest_used, p, size)
        self.rest_used = needed
        return 0

    cdef void _drop_rest(self) noexcept:
        free(self.rest)
        self.rest = NULL
        self.rest_used = self.rest_room = 0

    cdef void _drop_held(self) noexcept:
        if self.held is not None and self.position == PyBytes_GET_SIZE(self.held):
            self.held = None

    # -- one packet

    cdef object _handle(self, const Frame *frame, int64_t now_ms):
        """Handle the packet. Returns it if the caller has to handle it."""
        cdef int packet_id
        if self.version != 0:
            if frame.first >> 4 == 3:
                if self._publish(frame, now_ms):
                    return None
            elif frame.first == 0x40 and frame.size == 2:
                packet_id = ol_get16(frame.body)
                if packet_id != 0 and self.output.settle_packet(packet_id):
                    return None
        return (
            frame.first, PyBytes_FromStringAndSize(<const char *> frame.body, frame.size)
        )

    cdef bint _publish(self, const Frame *frame, int64_t now_ms) except -1:
        """Stage a plain PUBLISH. Returns False if it is not plain or has no room."""
        cdef bytes_at at = frame.body
        cdef int qos = frame.first >> 1 & 3, packet_id = 0, index
        cdef Py_ssize_t topic_bytes, skip
        cdef MqttRoute route
        cdef Stage stage
        cdef Slice topic, value
        if qos > 1 or (qos == 0 and frame.first & 8) or frame.size < 2:
            return False
        topic_bytes = ol_get16(at)
        skip = 2 + topic_bytes + 2 * qos + (self.version == 5)
        if topic_bytes == 0 or skip > frame.size or (self.version == 5 and at[skip - 1] != 0):
            return False
        if qos:
            packet_id = ol_get16(at + 2 + topic_bytes)
            if packet_id == 0 or 0 < self.receive_maximum <= self.unanswered:
                return False
        if (
            self.recent_topic is NULL or topic_bytes != self.recent_bytes
            or memcmp(at + 2, self.recent_topic, topic_bytes) != 0
        ):
            if not self._look_up(at + 2, topic_bytes):
                return False
        route = self.recent
        value.at = at + skip
        value.size = frame.size - skip
        stage = route.stage
        if value.size > route.value_bytes_max or (
            # Its number would not fit the list of acknowledgements.
            stage.number < 0 and len(stage.dirty) >= STAGES_MAX
        ):
            return False
        if qos:
            need_ack_space(self)
        topic.at = <bytes_at> PyBytes_AS_STRING(route.topic)
        topic.size = PyBytes_GET_SIZE(route.topic)
        index = stage.builder.add_raw(
            topic, topic, value, &self.headers[qos | (frame.first & 1) << 1], now_ms
        )
        if index < 0:
            if index == ADD_MEMORY:
                raise MemoryError
            return False
        stage.join()
        if qos:
            note_ack(self, packet_id, stage.number)
            self.unanswered += 1
        self.staged += 1
        self.staged_bytes += topic.size + value.size
        return True

    cdef bint _look_up(self, bytes_at at, Py_ssize_t size) except -1:
        """Make the topic's route the recent one. Returns False if it has none."""
        cdef bytes topic = self.last_topic
        cdef PyObject *found
        cdef object route
        if (
            topic is None or PyBytes_GET_SIZE(topic) != size
            or memcmp(at, PyBytes_AS_STRING(topic), size) != 0
        ):
            topic = PyBytes_FromStringAndSize(<const char *> at, size)
            if size <= TOPIC_BYTES_KEPT:
                self.last_topic = topic
        found = PyDict_GetItem(self.routes, topic)
        self.recent_topic = NULL
        if found is not NULL:
            self.recent = <MqttRoute?> <object> found
            self.recent_topic = at
            self.recent_bytes = size
            return True
        # Not remembered: `resolve` decides whether the answer is valid for the next packet, by
        # putting it among the routes.
        route = self.resolve(topic)
        if route is None:
            return False
        self.recent = <MqttRoute?> route
        return True
