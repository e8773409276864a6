"""The clocks, compiled: the machine's are read without a Python frame, any other is asked."""

from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

from onelog.base.clock import SystemClock

cdef type MACHINE = SystemClock


cdef int64_t read_clock(object clock) except? -1:
    """What `clock.now_ms()` returns."""
    cdef timespec now
    if type(clock) is MACHINE:
        clock_gettime(CLOCK_REALTIME, &now)
        return <int64_t> now.tv_sec * 1000 + now.tv_nsec // 1000000
    return clock.now_ms()


cdef double read_monotonic(object clock) except? -1:
    """What `clock.monotonic()` returns."""
    cdef timespec now
    if type(clock) is MACHINE:
        clock_gettime(CLOCK_MONOTONIC, &now)
        return <double> now.tv_sec + <double> now.tv_nsec * 1e-9
    return clock.monotonic()
