"""The trie's nodes, compiled: making, linking, values, freeing.

Rules: a function that cannot get memory says so and changes nothing. `extra_bytes` counts memory
beside the chunks.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from onelog.kernel._native.format cimport bytes_at


cdef bint _add_chunk(Trie *trie) noexcept nogil:
    cdef void *moved
    cdef Chunk *chunk
    if trie.chunks_count == trie.chunks_room:
        moved = realloc(trie.chunks, (2 * trie.chunks_room + 4) * sizeof(Chunk))
        if moved is NULL:
            return False
        trie.chunks = <Chunk *> moved
        trie.chunks_room = 2 * trie.chunks_room + 4
    chunk = &trie.chunks[trie.chunks_count]
    chunk.raw = malloc(CHUNK_NODES * sizeof(Node) + 64)
    if chunk.raw is NULL:
        return False
    chunk.nodes = <Node *> ((<size_t> chunk.raw + 63) & ~<size_t> 63)
    trie.chunks_count += 1
    return True


cdef bint open_trie(Trie *trie) noexcept nogil:
    """An empty trie with its root, from zeroed memory with seeds; False if there is no memory."""
    if not _add_chunk(trie):
        return False
    memset(trie.chunks[0].nodes, 0, sizeof(Node))
    trie.next_node = 1
    return new_node(trie, NULL, 0, 0) == 1


cdef void close_trie(Trie *trie) noexcept nogil:
    cdef uint32_t number, chunk
    cdef Node *node
    for number in range(1, trie.next_node):
        node = node_at(trie, number)
        if node.name_bytes > NAME_INLINE:
            free(node.name.long_text)
        if node.room:
            free(node.children.table)
        if node.values_room:
            free(node.values.many)
    for chunk in range(trie.chunks_count):
        free(trie.chunks[chunk].raw)
    free(trie.chunks)


cdef uint32_t new_node(Trie *trie, bytes_at name, uint16_t size, uint32_t hash) noexcept nogil:
    """A fresh node; 0 if there is no memory."""
    cdef uint32_t number
    cdef Node *node
    cdef char *long_text = NULL
    if (
        trie.free_node == 0
        and trie.next_node == trie.chunks_count * CHUNK_NODES
        and not _add_chunk(trie)
    ):
        return 0
    if size > NAME_INLINE:
        long_text = <char *> malloc(size)
        if long_text is NULL:
            return 0
    if trie.free_node:
        number = trie.free_node
        trie.free_node = node_at(trie, number).plus
    else:
        number = trie.next_node
        trie.next_node += 1
    node = node_at(trie, number)
    memset(node, 0, sizeof(Node))
    node.hash = hash
    node.name_bytes = size
    if long_text is not NULL:
        memcpy(long_text, name, size)
        node.name.long_text = long_text
        trie.extra_bytes += size + 16
    elif size:
        memcpy(&node.name, name, size)
    return number


cdef void free_node(Trie *trie, uint32_t number) noexcept nogil:
    cdef Node *node = node_at(trie, number)
    if node.name_bytes > NAME_INLINE:
        free(node.name.long_text)
        trie.extra_bytes -= node.name_bytes + 16
    if node.room:
        free(node.children.table)
        trie.extra_bytes -= node.room * sizeof(Slot)
    if node.values_room:
        free(node.values.many)
        trie.extra_bytes -= node.values_room * sizeof(int64_t)
    memset(node, 0, sizeof(Node))
    node.plus = trie.free_node
    trie.free_node = number


cdef inline void _put_slot(Slot *table, uint32_t mask, Slot slot) noexcept nogil:
    cdef uint32_t at = slot.hash & mask
    while table[at].node:
        at = (at + 1) & mask
    table[at] = slot


cdef bint _resize(Trie *trie, Node *node, uint32_t room) noexcept nogil:
    """Move the children into a table of another size; False if there is no memory."""
    cdef Slot *table = <Slot *> malloc(room * sizeof(Slot))
    cdef uint32_t at
    if table is NULL:
        return False
    memset(table, 0, room * sizeof(Slot))
    if node.room == 0:
        if node.count:
            _put_slot(table, room - 1, node.children.one)
    else:
        for at in range(node.room):
            if node.children.table[at].node:
                _put_slot(table, room - 1, node.children.table[at])
        free(node.children.table)
        trie.extra_bytes -= node.room * sizeof(Slot)
    trie.extra_bytes += room * sizeof(Slot)
    node.children.table = table
    node.room = room
    return True


cdef bint add_child(Trie *trie, uint32_t parent, uint32_t child) noexcept nogil:
    cdef Node *node = node_at(trie, parent)
    cdef Slot slot
    slot.hash = node_at(trie, child).hash
    slot.node = child
    if node.count == 0 and node.room == 0:
        node.children.one = slot
        node.count = 1
        return True
    if node.room == 0:
        if not _resize(trie, node, 4):
            return False
    elif (node.count + 1) * 4 > node.room * 3 and not _resize(trie, node, node.room * 2):
        return False
    _put_slot(node.children.table, node.room - 1, slot)
    node.count += 1
    return True


cdef void drop_child(Trie *trie, uint32_t parent, uint32_t child) noexcept nogil:
    """Take a child out of its parent's table, closing the gap it leaves in the probe chain."""
    cdef Node *node = node_at(trie, parent)
    cdef uint32_t mask, at, next_at, home
    cdef Slot *table
    node.count -= 1
    if node.room == 0:
        node.children.one.node = 0
        return
    table = node.children.table
    mask = node.room - 1
    at = node_at(trie, child).hash & mask
    while table[at].node != child:
        at = (at + 1) & mask
    next_at = at
    while True:
        next_at = (next_at + 1) & mask
        if table[next_at].node == 0:
            break
        home = table[next_at].hash & mask
        # Movable if its home is not between the gap and its slot.
        if ((next_at - home) & mask) >= ((next_at - at) & mask):
            table[at] = table[next_at]
            at = next_at
    table[at].node = 0
    if node.count == 0:
        free(table)
        trie.extra_bytes -= node.room * sizeof(Slot)
        node.room = 0
        node.children.one.node = 0
    elif node.room > 4 and node.count * 8 < node.room:
        _resize(trie, node, node.room // 2)


cdef inline const int64_t *_values(const Node *node) noexcept nogil:
    if node.values_room:
        return node.values.many
    return <const int64_t *> &node.values


cdef inline uint32_t _find_value(const Node *node, int64_t value) noexcept nogil:
    """The index of the value, or where it would be."""
    cdef const int64_t *items = _values(node)
    cdef uint32_t low = 0, high = node.values_count, middle
    if high and items[high - 1] < value:  # ids mostly grow
        return high
    while low < high:
        middle = (low + high) // 2
        if items[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


cdef int add_value(Trie *trie, Node *node, int64_t value) noexcept nogil:
    """1 if added, 0 if it was there, -1 if there is no memory."""
    cdef uint32_t at = _find_value(node, value), room
    cdef int64_t *items
    if at < node.values_count and _values(node)[at] == value:
        return 0
    if node.values_count == 0 and node.values_room == 0:
        node.values.one = value
        node.values_count = 1
        return 1
    if node.values_room == 0 or node.values_count == node.values_room:
        room = max(4, node.values_room + node.values_room // 2)
        items = <int64_t *> realloc(
            node.values.many if node.values_room else NULL, room * sizeof(int64_t)
        )
        if items is NULL:
            return -1
        if node.values_room == 0:
            items[0] = node.values.one
        trie.extra_bytes += (room - node.values_room) * sizeof(int64_t)
        node.values.many = items
        node.values_room = room
    items = node.values.many
    memmove(&items[at + 1], &items[at], (node.values_count - at) * sizeof(int64_t))
    items[at] = value
    node.values_count += 1
    return 1


cdef bint remove_value(Trie *trie, Node *node, int64_t value) noexcept nogil:
    cdef uint32_t at = _find_value(node, value)
    cdef int64_t *items
    if at >= node.values_count or _values(node)[at] != value:
        return False
    node.values_count -= 1
    if node.values_room:
        items = node.values.many
        memmove(&items[at], &items[at + 1], (node.values_count - at) * sizeof(int64_t))
        if node.values_count <= 1:
            value = items[0]
            free(items)
            trie.extra_bytes -= node.values_room * sizeof(int64_t)
            node.values_room = 0
            node.values.one = value
    return True


