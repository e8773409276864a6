"""Packet ids in flight, in C: found by id, kept in the order of delivery. Inlined.

Rules: memory grows with the number in flight, not with the window, and is freed when nothing is in
flight. Entries hang together three ways: free ones in a list, used ones in a chain per bucket and
in one list from the oldest to the newest.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

cdef enum:
    FLIGHT_NONE = 0xFFFF
    FLIGHT_ROOM_MIN = 8
    FLIGHT_ROOM_KEPT = 64
    PACKET_IDS = 65535

cdef struct Entry:
    int64_t offset
    int32_t partition
    uint16_t packet_id
    uint16_t chain
    uint16_t before
    uint16_t after
    uint8_t qos
    uint8_t stage

cdef struct Flight:
    # One block: `room` entries, then `room` heads of chains; a power of two.
    Entry *entries
    uint16_t *heads
    uint32_t room
    uint32_t count
    uint16_t vacant
    uint16_t first
    uint16_t last
    uint16_t next_id


cdef inline void flight_open(Flight *flight) noexcept nogil:
    memset(flight, 0, sizeof(Flight))
    flight.vacant = flight.first = flight.last = FLIGHT_NONE
    flight.next_id = 1


cdef inline void flight_close(Flight *flight) noexcept nogil:
    """Forget everything but the next packet id."""
    free(flight.entries)
    flight.entries = NULL
    flight.heads = NULL
    flight.room = flight.count = 0
    flight.vacant = flight.first = flight.last = FLIGHT_NONE


cdef inline Entry *flight_find(const Flight *flight, int packet_id) noexcept nogil:
    cdef uint16_t at
    if flight.count == 0:
        return NULL
    at = flight.heads[packet_id & (flight.room - 1)]
    while at != FLIGHT_NONE:
        if flight.entries[at].packet_id == packet_id:
            return &flight.entries[at]
        at = flight.entries[at].chain
    return NULL


cdef inline void flight_hang(Flight *flight, uint16_t at) noexcept nogil:
    cdef uint16_t *head = &flight.heads[flight.entries[at].packet_id & (flight.room - 1)]
    flight.entries[at].chain = head[0]
    head[0] = at


cdef inline bint flight_grow(Flight *flight) noexcept nogil:
    """Double the room; only called when every entry is used."""
    cdef uint32_t used = flight.room, room = max(2 * used, <uint32_t> FLIGHT_ROOM_MIN), at
    cdef Entry *entries = <Entry *> malloc(room * (sizeof(Entry) + sizeof(uint16_t)))
    if entries is NULL:
        return False
    if used:
        memcpy(entries, flight.entries, used * sizeof(Entry))
        free(flight.entries)
    flight.entries = entries
    flight.heads = <uint16_t *> (entries + room)
    flight.room = room
    memset(flight.heads, 0xFF, room * sizeof(uint16_t))
    for at in range(used):
        flight_hang(flight, <uint16_t> at)
    # The last of 65536 entries would be FLIGHT_NONE: it is not used.
    for at in range(used, min(room, <uint32_t> FLIGHT_NONE)):
        entries[at].chain = <uint16_t> (at + 1)
    entries[min(room, <uint32_t> FLIGHT_NONE) - 1].chain = FLIGHT_NONE
    flight.vacant = <uint16_t> used
    return True


cdef inline Entry *flight_add(Flight *flight, int packet_id) noexcept nogil:
    """An entry at the end for an id that is not in flight; NULL without memory."""
    cdef uint16_t at
    cdef Entry *entry
    if flight.vacant == FLIGHT_NONE and not flight_grow(flight):
        return NULL
    at = flight.vacant
    entry = &flight.entries[at]
    flight.vacant = entry.chain
    entry.packet_id = <uint16_t> packet_id
    flight_hang(flight, at)
    entry.before = flight.last
    entry.after = FLIGHT_NONE
    if flight.last == FLIGHT_NONE:
        flight.first = at
    else:
        flight.entries[flight.last].after = at
    flight.last = at
    flight.count += 1
    return entry


cdef inline void flight_remove(Flight *flight, Entry *entry) noexcept nogil:
    cdef uint16_t at = <uint16_t> (entry - flight.entries)
    cdef uint16_t *link = &flight.heads[entry.packet_id & (flight.room - 1)]
    while link[0] != at:
        link = &flight.entries[link[0]].chain
    link[0] = entry.chain
    if entry.before == FLIGHT_NONE:
        flight.first = entry.after
    else:
        flight.entries[entry.before].after = entry.after
    if entry.after == FLIGHT_NONE:
        flight.last = entry.before
    else:
        flight.entries[entry.after].before = entry.before
    entry.chain = flight.vacant
    flight.vacant = at
    flight.count -= 1
    if flight.count == 0 and flight.room > FLIGHT_ROOM_KEPT:
        flight_close(flight)
