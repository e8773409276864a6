"""The pass of a loop, compiled: what one wake-up leads to is done before it ends.

Rules: the twin is the specification. `begin` and `end` are `run` for wake-ups in C: only one whose
`begin` was True calls `end`. Calls of the kernel's own (`PassCall`) take no frame. `send_few` sends
in the middle of a pass what waits for few sockets.
"""

from onelog.kernel._native.lists cimport clear_list

from weakref import WeakValueDictionary

# By the id of the loop, which a pass keeps alive.
cdef object _passes = WeakValueDictionary()


cdef class PassCall:
    """A call of the kernel's own."""

    cdef int make(self) except -1:
        raise NotImplementedError

    def __call__(self):
        """Make the call."""
        self.make()


cdef class PassEnd(PassCall):
    """Sends what was written in a pass."""

    cdef int send_few(self) except -1:
        """Send now, if it is little; no protocol is called. The call of the pass's end stays."""
        raise NotImplementedError


cdef class LoopPass:
    """What is to be done before a wake-up of the loop ends; one for each loop (`pass_of`)."""

    def __init__(self, loop):
        self.loop = loop
        self.calls = []
        self.lasts = []

    def call_soon(self, call):
        """Call it before the wake-up ends; if there is none, in the next pass of the loop."""
        self.soon(call)

    cdef int soon(self, object call) except -1:
        if self.is_open and not self.is_ending:
            self.calls.append(call)
        else:
            self.loop.call_soon(call)
        return 0

    def call_last(self, call):
        """Call it behind those of `call_soon`."""
        self.later(call)

    cdef int later(self, object call) except -1:
        if self.is_open:
            self.lasts.append(call)
            if isinstance(call, PassEnd):
                self.sending = <PassEnd> call
        else:
            self.loop.call_soon(call)
        return 0

    cdef int send_few(self) except -1:
        """Send what was written in this pass, if it is little."""
        if self.sending is not None:
            try:
                self.sending.send_few()
            except Exception as error:
                self.loop.call_soon(raise_again, error)
        return 0

    def run(self, wake_up):
        """Call a function, and then what it asked for. Within a pass it is a plain call."""
        if not self.begin():
            wake_up()
            return
        try:
            wake_up()
        finally:
            self.end()

    cdef bint begin(self) noexcept:
        """Open a pass; False: one is open already."""
        if self.is_open:
            return False
        self.is_open = True
        self.is_ending = False
        return True

    cdef int end(self) except -1:
        """Make the calls that the pass collected."""
        cdef list calls
        self.is_ending = True
        if self.calls:
            self._make(self.calls)  # nothing joins them
        self.is_open = False
        self.sending = None
        if self.lasts:
            calls = self.lasts
            self.lasts = [] if self.spare is None else self.spare
            self.spare = None
            self._make(calls)
            self.spare = calls
        return 0

    cdef int _make(self, list calls) except -1:
        for call in calls:
            try:
                if isinstance(call, PassCall):
                    (<PassCall> call).make()
                else:
                    call()
            except Exception as error:
                self.loop.call_soon(raise_again, error)
        return clear_list(calls)


def raise_again(error):
    """Raise what a call raised where the loop reports it."""
    raise error


cpdef LoopPass pass_of(loop):
    """The pass of a loop."""
    cdef LoopPass found = _passes.get(id(loop))
    if found is None:
        found = _passes[id(loop)] = LoopPass(loop)
    return found
