"""C face of AMQP's frames."""

from libc.stdint cimport uint64_t

from onelog.kernel._native.format cimport bytes_at

cdef enum:
    METHOD = 1
    HEADER = 2
    BODY = 3
    HEARTBEAT = 8
    PUBLISH = 100
    ACK = 101
    STAGED = 102
    FAULT = -1
    TOO_LARGE = 1
    BAD_END = 2
    BAD_TYPE = 3
    END = 0xCE
    BASIC = 60
    PUBLISH_METHOD = 0x003C0028
    ACK_METHOD = 0x003C0050
    # How many bytes of a publish that a read cut in two are waited for.
    WAIT_BYTES_MAX = 65536
    WAIT_FRAMES_MAX = 4
    # Staged bytes from which on the caller should write first.
    STAGE_BYTES_MAX = 4 * 1024 * 1024

cdef struct Frame:
    int kind
    int channel
    bytes_at start
    bytes_at end

cdef struct Content:
    # A publish after its method: its names, its properties, its body.
    bytes_at names
    bytes_at names_end
    bytes_at properties
    bytes_at properties_end
    bytes_at body
    uint64_t size
    int frames
    bytes_at after

cdef int read_frame(bytes_at at, bytes_at stop, uint64_t limit, Frame *frame) noexcept nogil
cdef int read_content(
    const Frame *method, bytes_at stop, uint64_t limit, Content *found
) noexcept nogil
cdef object publish_event(int channel, const Content *content, bytes_at stop, uint64_t limit)
cdef tuple ack_event(const Frame *frame)
