"""The pass of a loop, compiled: what one wake-up leads to is done before it ends.

Rules: the twin is the specification. `begin` and `end` are `run` for wake-ups in C: only one whose
`begin` was True calls `end`.
"""

from weakref import WeakValueDictionary

# By the id of the loop, which a pass keeps alive.
cdef object _passes = WeakValueDictionary()


cdef class LoopPass:
    """What is to be done before a wake-up of the loop ends; one for each loop (`pass_of`)."""

    def __init__(self, loop):
        self.loop = loop
        self.calls = []
        self.lasts = []

    def call_soon(self, call):
        """Call it before the wake-up ends; if there is none, in the next pass of the loop."""
        if self.is_open and not self.is_ending:
            self.calls.append(call)
        else:
            self.loop.call_soon(call)

    def call_last(self, call):
        """Call it behind those of `call_soon`."""
        self.later(call)

    cdef int later(self, object call) except -1:
        if self.is_open:
            self.lasts.append(call)
        else:
            self.loop.call_soon(call)
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
            calls = self.calls
            self.calls = []
            self._make(calls)
        self.is_open = False
        if self.lasts:
            calls = self.lasts
            self.lasts = []
            self._make(calls)
        return 0

    cdef int _make(self, list calls) except -1:
        for call in calls:
            try:
                call()
            except Exception as error:
                self.loop.call_soon(raise_again, error)
        return 0


def raise_again(error):
    """Raise what a call raised where the loop reports it."""
    raise error


cpdef LoopPass pass_of(loop):
    """The pass of a loop."""
    cdef LoopPass found = _passes.get(id(loop))
    if found is None:
        found = _passes[id(loop)] = LoopPass(loop)
    return found
