"""The trie's nodes in C: one cache line each, in chunks of 512, named by number.

Rules: number 0 is none, 1 is the root. The children of a node are an open-addressing table of
(hash, number), or that pair itself when there is one; its values are a sorted array, or the value
itself when there is one.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

from onelog.kernel._native.format cimport bytes_at

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


