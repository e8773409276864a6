"""The trie's nodes in C: one cache line each, in chunks of 512, named by number.

Rules: number 0 is none, 1 is the root. The children of a node are an open-addressing table of
(hash, number), or that pair itself when there is one; its values are a sorted array, or the value
itself when there is one.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

from onelog.kernel._native.filters cimport Level
from onelog.kernel._native.format cimport TOPIC_LEVELS_MAX, bytes_at

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint64_t ol_mix(uint64_t a, uint64_t b) {
    #ifdef __SIZEOF_INT128__
        unsigned __int128 product = (unsigned __int128)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    #else
        a *= b; a ^= a >> 29; a *= 0x9E3779B97F4A7C15ull; return a ^ (a >> 32);
    #endif
    }
    /* Seeded hash of a few bytes: two words cover a level of up to sixteen. */
    static inline uint32_t ol_hash(const unsigned char *p, size_t n, uint64_t s, uint64_t t) {
        uint64_t a = 0, b = 0;
        s ^= n;
        while (n > 16) {
            memcpy(&a, p, 8); memcpy(&b, p + 8, 8);
            s = ol_mix(a ^ s, b ^ t);
            p += 16; n -= 16;
        }
        a = b = 0;
        if (n >= 8) { memcpy(&a, p, 8); memcpy(&b, p + n - 8, 8); }
        else if (n >= 4) {
            uint32_t x, y; memcpy(&x, p, 4); memcpy(&y, p + n - 4, 4); a = x; b = y;
        } else if (n) a = (uint64_t)p[0] << 16 | (uint64_t)p[n >> 1] << 8 | p[n - 1];
        a = ol_mix(a ^ s, b ^ t);
        return (uint32_t)(a ^ (a >> 32));
    }
    """
    uint32_t ol_hash(const unsigned char *p, size_t n, uint64_t s, uint64_t t) noexcept nogil

cdef enum:
    CHUNK_NODES = 512
    NAME_INLINE = 16

cdef struct Slot:
    uint32_t hash
    uint32_t node

cdef union Children:
    Slot one
    Slot *table

cdef union Values:
    int64_t one
    int64_t *many

cdef union Name:
    char text[16]
    char *long_text

cdef struct Node:
    uint32_t plus
    uint32_t rest
    uint32_t count
    uint32_t room  # slots of the table; 0: the only child is in `children.one`
    Children children
    Values values
    uint32_t values_count
    uint32_t values_room  # 0: the only value is in `values.one`
    uint32_t hash
    uint16_t name_bytes
    Name name

cdef struct Chunk:
    void *raw
    Node *nodes

cdef struct Trie:
    Chunk *chunks
    uint32_t chunks_count
    uint32_t chunks_room
    uint32_t next_node
    uint32_t free_node
    Py_ssize_t extra_bytes
    uint64_t seed_a
    uint64_t seed_b

cdef struct Part:
    bytes_at at
    uint32_t size
    uint32_t hash


cdef bint open_trie(Trie *trie) noexcept nogil
cdef void close_trie(Trie *trie) noexcept nogil
cdef uint32_t new_node(Trie *trie, bytes_at name, uint16_t size, uint32_t hash) noexcept nogil
cdef void free_node(Trie *trie, uint32_t number) noexcept nogil
cdef bint add_child(Trie *trie, uint32_t parent, uint32_t child) noexcept nogil
cdef void drop_child(Trie *trie, uint32_t parent, uint32_t child) noexcept nogil
cdef int add_value(Trie *trie, Node *node, int64_t value) noexcept nogil
cdef bint remove_value(Trie *trie, Node *node, int64_t value) noexcept nogil


cdef inline Node *node_at(const Trie *trie, uint32_t number) noexcept nogil:
    return trie.chunks[number // CHUNK_NODES].nodes + number % CHUNK_NODES


cdef inline const char *name_of(const Node *node) noexcept nogil:
    if node.name_bytes <= NAME_INLINE:
        return <const char *> &node.name
    return node.name.long_text


cdef inline bint _is(const Trie *trie, uint32_t number, const Part *part) noexcept nogil:
    cdef Node *node = node_at(trie, number)
    return node.name_bytes == part.size and memcmp(name_of(node), part.at, part.size) == 0


cdef inline uint32_t child_of(const Trie *trie, const Node *node, const Part *part) noexcept nogil:
    """The child of that name; 0 if there is none."""
    cdef uint32_t mask, at
    cdef Slot *slot
    if node.room == 0:
        if (
            node.count == 1
            and node.children.one.hash == part.hash
            and _is(trie, node.children.one.node, part)
        ):
            return node.children.one.node
        return 0
    mask = node.room - 1
    at = part.hash & mask
    while True:
        slot = &node.children.table[at]
        if slot.node == 0:
            return 0
        if slot.hash == part.hash and _is(trie, slot.node, part):
            return slot.node
        at = (at + 1) & mask


cdef inline int split_topic(
    const Trie *trie, bytes_at topic, Py_ssize_t size, Part *parts
) noexcept nogil:
    """Levels of a topic with their hashes; of a deeper topic, one more than a filter can have."""
    cdef bytes_at end = topic + size
    cdef bytes_at stop
    cdef int count = 0
    while count <= TOPIC_LEVELS_MAX:
        stop = topic
        while stop < end and stop[0] != c"/":
            stop += 1
        parts[count].at = topic
        parts[count].size = <uint32_t> (stop - topic)
        parts[count].hash = ol_hash(topic, stop - topic, trie.seed_a, trie.seed_b)
        count += 1
        if stop == end:
            break
        topic = stop + 1
    return count


cdef inline void hash_levels(
    const Trie *trie, bytes_at text, const Level *levels, int depth, Part *parts
) noexcept nogil:
    """The levels of a filter as parts."""
    cdef int at
    for at in range(depth):
        parts[at].at = text + levels[at].at
        parts[at].size = levels[at].size
        parts[at].hash = ol_hash(parts[at].at, parts[at].size, trie.seed_a, trie.seed_b)
