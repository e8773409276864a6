"""Plans, compiled: the subscribers of a topic, sorted by what they can share.

Rules: a plan has each subscriber once. Plain ones come first: those without identifiers, no local,
retain as published, aliases or a packet limit of their own, so that their QoS 0 packets are the
same bytes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdlib cimport calloc, free

from onelog.kernel._native.build cimport Slice
from onelog.kernel._native.format cimport bytes_at
from onelog.kernel._native.mqtt_output cimport MqttOutput

from onelog.kernel._native.wire import encode_remaining_length


cdef class Subscription:
    """One filter of one subscriber, with its options."""


cdef class Plan:
    """The subscribers of the topics that the same subscriptions match."""

    def __dealloc__(self):
        free(self.targets)


cdef Slice _slice(bytes data):
    cdef Slice out
    out.at = <bytes_at> PyBytes_AS_STRING(data)
    out.size = PyBytes_GET_SIZE(data)
    return out


cdef int _fill(Target *target, list rows, list kept) except -1:
    """Combine a subscriber's subscriptions."""
    cdef Subscription row = rows[0]
    cdef bint wanted = False
    cdef bytes own = row.no_local, identifiers
    cdef set numbers = set()
    target.output = <PyObject *> row.output
    kept.append(row.output)
    for row in rows:
        target.qos = max(target.qos, row.qos)
        target.retain_as_published = target.retain_as_published or row.retain_as_published
        # `no local` counts only if all matching subscriptions have it.
        wanted = wanted or not row.no_local
        if row.identifier:
            numbers.add(row.identifier)
    if not wanted:
        target.no_local = _slice(own)
        kept.append(own)
    if numbers:
        identifiers = b"".join([b"\x0b" + encode_remaining_length(n) for n in sorted(numbers)])
        target.identifiers = _slice(identifiers)
        kept.append(identifiers)
    return 0


cdef int _rank(const Target *target) except -1:
    cdef MqttOutput output = <MqttOutput> target.output
    if (
        target.identifiers.size or target.no_local.size or target.retain_as_published
        or output.packet_bytes_max > 0 or output.alias_maximum > 0
    ):
        return 2
    return 1 if target.qos else 0


cdef Plan make_plan(tuple numbers, dict subscriptions):
    """The plan of the topics that exactly these subscriptions match."""
    cdef Plan plan = Plan.__new__(Plan)
    cdef Target *made
    cdef dict by_output = {}
    cdef Subscription row
    cdef int index = 0, rank
    plan.numbers = numbers
    plan.kept = []
    for number in numbers:
        row = subscriptions[number]
        by_output.setdefault(id(row.output), []).append(row)
    made = <Target *> calloc(2 * len(by_output) + 1, sizeof(Target))
    if made is NULL:
        raise MemoryError
    plan.targets = made  # made in the second half, sorted into the first
    made += len(by_output)
    for rows in by_output.values():
        _fill(&made[index], rows, plan.kept)
        index += 1
    for rank in range(3):
        if rank == 1:
            plan.strong_from = plan.count
        elif rank == 2:
            plan.wishes_from = plan.count
        for index in range(<int> len(by_output)):
            if _rank(&made[index]) == rank:
                plan.targets[plan.count] = made[index]
                plan.count += 1
    return plan
