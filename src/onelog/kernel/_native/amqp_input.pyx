"""AMQP's way in, compiled: one connection's bytes become staged records, settled messages, events.

Rules: the twin is the specification. Where a peer is given, plain acknowledgements that no event
stands before are settled here, and staged publishes are counted here; neither is an event then.
"""

from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from onelog.kernel._native.amqp_channel cimport AmqpPeer, ChannelEnd
from onelog.kernel._native.amqp_confirms cimport PublishingEnd
from onelog.kernel._native.amqp_wire cimport (
    ACK,
    ACK_METHOD,
    FAULT,
    HEARTBEAT,
    METHOD,
    PUBLISH_METHOD,
    STAGE_BYTES_MAX,
    STAGED,
    Content,
    Frame,
    ack_event,
    publish_event,
    read_content,
    read_frame,
)
from onelog.kernel._native.build cimport ADD_MEMORY, RawHeaders, Slice
from onelog.kernel._native.clock cimport read_clock
from onelog.kernel._native.format cimport bytes_at, ol_get16, ol_get32, ol_get64
from onelog.kernel._native.stage cimport Stage

from onelog.kernel._native.amqp_wire import encode_headers


cdef class AmqpRoute:
    """Where publishes with the same exchange, key and properties go."""

    cdef readonly bytes topic
    cdef readonly Stage stage
    cdef readonly Py_ssize_t value_bytes_max
    cdef bytes encoded
    cdef RawHeaders headers

    def __init__(
        self, bytes topic not None, Stage stage not None, Py_ssize_t value_bytes_max, headers
    ):
        self.topic = topic
        self.stage = stage
        self.value_bytes_max = value_bytes_max
        self.encoded = encode_headers(headers)
        self.headers.at = <bytes_at> PyBytes_AS_STRING(self.encoded)
        self.headers.size = PyBytes_GET_SIZE(self.encoded)
        self.headers.count = len(headers)
        self.headers.shadows_topic = False


cdef class AmqpInput:
    """One connection's byte stream."""

    cdef public Py_ssize_t frame_bytes_max
    cdef dict routes
    cdef bytes rest
    cdef bytes recent_key
    cdef AmqpRoute recent

    def __init__(self, Py_ssize_t frame_bytes_max):
        self.frame_bytes_max = frame_bytes_max
        self.routes = {}

    @property
    def route_count(self):
        """How many routes it knows."""
        return len(self.routes)

    def add_route(
        self, int channel, bytes names not None, bytes properties not None, AmqpRoute route not None
    ):
        """Let publishes with these names and properties be staged without a check."""
        self.routes[channel.to_bytes(2, "big") + names + properties] = route

    def forget(self):
        """Forget all routes: every publish is checked again."""
        self.routes.clear()
        self.recent = None
        self.recent_key = None

    def take(self, bytes data not None, int64_t now_ms):
        """Take received bytes. Returns the bytes that events refer to, and the events.

        Events are as in `split_amqp`; (STAGED, channel, count, stage, start, end) are publishes
        that follow each other and are staged. After the first event that the caller has to handle,
        except acknowledgements, nothing is staged.
        """
        return self.take_for(None, data, now_ms)

    cdef tuple take_for(self, AmqpPeer peer, bytes data, int64_t now_ms):
        cdef bytes_at first, at, stop
        cdef Frame frame
        cdef Content content
        cdef uint64_t limit = <uint64_t> self.frame_bytes_max
        cdef uint32_t number
        cdef list events = []
        cdef bint may_stage = bool(self.routes), may_settle = peer is not None
        cdef int whole, channel = -1
        cdef Py_ssize_t count = 0
        cdef bytes_at start = NULL
        cdef Stage stage = None
        cdef object found
        if self.rest is not None:
            data = self.rest + data
            self.rest = None
        first = at = <bytes_at> PyBytes_AS_STRING(data)
        stop = first + PyBytes_GET_SIZE(data)
        while read_frame(at, stop, limit, &frame):
            found = None
            if frame.kind == METHOD and frame.end - frame.start >= 4:
                number = ol_get32(frame.start)
                if number == PUBLISH_METHOD:
                    whole = read_content(&frame, stop, limit, &content)
                    if whole < 0:
                        break
                    if whole:
                        if may_stage and self._stage(frame.channel, &content, now_ms):
                            if count and (
                                channel != frame.channel or stage is not self.recent.stage
                            ):
                                _staged(
                                    peer, events, channel, count, stage, data, start - first,
                                    at - first,
                                )
                                count = 0
                            if not count:
                                channel, stage, start = frame.channel, self.recent.stage, at
                            count += 1
                            at = content.after
                            continue
                        found = publish_event(frame.channel, &content, stop, limit)
                elif number == ACK_METHOD and frame.end - frame.start == 13:
                    if may_settle:
                        if count:
                            _staged(
                                peer, events, channel, count, stage, data, start - first, at - first
                            )
                            count = 0
                        if peer.take_ack(
                            frame.channel, ol_get64(frame.start + 4), frame.start[12] & 1
                        ):
                            at = frame.end + 1
                            continue
                    found = ack_event(&frame)
            if count:
                _staged(peer, events, channel, count, stage, data, start - first, at - first)
                count = 0
            may_settle = False
            if frame.kind == FAULT:
                events.append((FAULT, frame.channel))
                return data, events
            if found is None:
                events.append((frame.kind, frame.channel, frame.start - first, frame.end - first))
                at = frame.end + 1
                may_stage = may_stage and frame.kind == HEARTBEAT
            elif found[0] == ACK:
                events.append(found)
                at = frame.end + 1
            else:
                events.append(found)
                at = content.after
                may_stage = False
        if count:
            _staged(peer, events, channel, count, stage, data, start - first, at - first)
        if at < stop:
            self.rest = PyBytes_FromStringAndSize(<const char *> at, stop - at)
        return data, events

    cdef bint _stage(self, int channel, const Content *content, int64_t now_ms) except -1:
        """Stage a publish whose route is known. Returns False when it has no route, or no room."""
        cdef Slice topic, value
        cdef AmqpRoute route
        cdef int index
        if content.frames > 1 or not self._find(channel, content):
            return False
        route = self.recent
        if (
            content.size > <uint64_t> route.value_bytes_max
            or route.stage.builder.used >= STAGE_BYTES_MAX
        ):
            return False
        topic.at = <bytes_at> PyBytes_AS_STRING(route.topic)
        topic.size = PyBytes_GET_SIZE(route.topic)
        value.at = content.body
        value.size = <Py_ssize_t> content.size
        index = route.stage.builder.add_raw(topic, topic, value, &route.headers, now_ms)
        if index < 0:
            if index == ADD_MEMORY:
                raise MemoryError
            return False
        route.stage.join()
        return True

    cdef bint _find(self, int channel, const Content *content) except -1:
        """Make the publish's route the recent one. Returns False if it has none."""
        cdef Py_ssize_t names = content.names_end - content.names
        cdef Py_ssize_t properties = content.properties_end - content.properties
        cdef unsigned char *at
        cdef bytes key
        cdef PyObject *found
        if (
            self.recent_key is not None
            and PyBytes_GET_SIZE(self.recent_key) == 2 + names + properties
        ):
            at = <unsigned char *> PyBytes_AS_STRING(self.recent_key)
            if (
                ol_get16(at) == channel
                and memcmp(at + 2, content.names, names) == 0
                and memcmp(at + 2 + names, content.properties, properties) == 0
            ):
                return True
        key = PyBytes_FromStringAndSize(NULL, 2 + names + properties)
        at = <unsigned char *> PyBytes_AS_STRING(key)
        at[0] = <unsigned char> (channel >> 8)
        at[1] = <unsigned char> channel
        memcpy(at + 2, content.names, names)
        memcpy(at + 2 + names, content.properties, properties)
        found = PyDict_GetItem(self.routes, key)
        if found is NULL:
            return False
        self.recent = <AmqpRoute> <object> found
        self.recent_key = key
        return True


cdef int _staged(
    AmqpPeer peer, list events, int channel, Py_ssize_t count, Stage stage, bytes data,
    Py_ssize_t start, Py_ssize_t end,
) except -1:
    """Publishes that follow each other are staged: count them, or tell the caller."""
    cdef PyObject *found
    if peer is not None:
        found = PyDict_GetItem(peer.channels, channel)
        if found is not NULL and (
            <PublishingEnd?> (<ChannelEnd?> <object> found).publishing
        ).stage_quickly(count, stage, data, start, end):
            return 0
    events.append((STAGED, channel, count, stage, start, end))
    return 0


cdef class AmqpReader(AmqpPeer):
    """A connection that is read."""

    cdef public AmqpInput input
    cdef public object pauses
    cdef public object reading
    cdef public object queues
    cdef public int64_t generation
    cdef public object clock

    def data_received(self, bytes data not None):
        """Bytes of the peer, in order."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef list rows
        if not self.is_open or self.reading.is_behind or self.generation != self.queues.generation:
            self.take_slowly(data)
            return
        self.pauses.heard = True
        self.received_bytes += size
        self.counters.received_bytes += size
        try:
            whole, rows = self.input.take_for(self, data, read_clock(self.clock))
            if rows:
                self.reading.take_rows(whole, rows)
        except Exception as error:  # a bug ends one connection
            self.reading.fail(error)
