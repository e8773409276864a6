"""The topic trie, compiled: which values are bound to the filters that match a topic.

Rules: a value is bound to a filter at most once. Empty nodes are removed at once. A cached answer
has the generation in which it was made: a change of a wildcard filter makes the answers of every
topic of its first level too old (of all topics, if that level is a wildcard); a change of an exact
one only removes the answer of its own topic.
"""

import os

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_FromLongLong
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memcpy

from onelog.kernel._native.filters cimport (
    LEVEL_PLUS,
    LEVEL_REST,
    LEVEL_TEXT,
    Level,
    refuse_filter,
    split_levels,
)
from onelog.kernel._native.format cimport TOPIC_BYTES_MAX, TOPIC_LEVELS_MAX, bytes_at
from onelog.kernel._native.nodes cimport (
    CHUNK_NODES,
    Chunk,
    Node,
    Part,
    Trie,
    add_child,
    add_value,
    child_of,
    close_trie,
    drop_child,
    free_node,
    hash_levels,
    name_of,
    new_node,
    node_at,
    open_trie,
    remove_value,
    split_topic,
)

from onelog.base.errors import InvalidRequest

cdef enum:
    BUCKETS = 1024
    # Two generations of the cache hold at most this each: topics, and values of all answers.
    CACHE_TOPICS = 32768
    CACHE_VALUES = 1 << 20

cdef struct Found:
    int64_t *items
    Py_ssize_t count
    Py_ssize_t room
    bint failed

cdef inline void _take(Found *found, const Node *node) noexcept nogil:
    cdef void *moved
    cdef Py_ssize_t needed = found.count + node.values_count, room
    if node.values_count == 0:
        return
    if needed > found.room:
        room = max(needed, 2 * found.room)
        moved = realloc(found.items, room * sizeof(int64_t))
        if moved is NULL:
            found.failed = True
            return
        found.items = <int64_t *> moved
        found.room = room
    if node.values_room == 0:
        found.items[found.count] = node.values.one
    else:
        memcpy(&found.items[found.count], node.values.many, node.values_count * sizeof(int64_t))
    found.count = needed


cdef void _match(
    const Trie *trie, uint32_t number, const Part *parts, int left, Found *found
) noexcept nogil:
    """Values of the filters below a node that match the parts left. Depth is at most 64."""
    cdef Node *node = node_at(trie, number)
    cdef uint32_t child
    if node.rest:
        _take(found, node_at(trie, node.rest))
    if left == 0:
        _take(found, node)
        return
    if node.plus:
        _match(trie, node.plus, parts + 1, left - 1, found)
    if node.count:
        child = child_of(trie, node, parts)
        if child:
            _match(trie, child, parts + 1, left - 1, found)


cdef void _below(const Trie *trie, uint32_t number, bint first, Found *found) noexcept nogil:
    """Values of a node and of every plain topic under it."""
    cdef Node *node = node_at(trie, number)
    cdef uint32_t at, child
    _take(found, node)
    for at in range(max(node.room, 1)):
        child = _slot_node(node, at)
        if child and not (first and _hidden(trie, child)):
            _below(trie, child, False, found)


cdef inline uint32_t _slot_node(const Node *node, uint32_t at) noexcept nogil:
    if node.room:
        return node.children.table[at].node
    return node.children.one.node if node.count else 0


cdef inline bint _hidden(const Trie *trie, uint32_t number) noexcept nogil:
    cdef Node *node = node_at(trie, number)
    return node.name_bytes > 0 and name_of(node)[0] == c"$"


cdef void _covered(
    const Trie *trie, uint32_t number, const Part *parts, const Level *levels, int depth, int at,
    Found *found,
) noexcept nogil:
    """Values of the topics below a node that a filter's levels from `at` on match."""
    cdef Node *node = node_at(trie, number)
    cdef uint32_t index, child
    if at == depth:
        _take(found, node)
    elif levels[at].kind == LEVEL_REST:
        _below(trie, number, at == 0, found)
    elif levels[at].kind == LEVEL_PLUS:
        for index in range(max(node.room, 1)):
            child = _slot_node(node, index)
            if child and not (at == 0 and _hidden(trie, child)):
                _covered(trie, child, parts, levels, depth, at + 1, found)
    else:
        child = child_of(trie, node, &parts[at])
        if child:
            _covered(trie, child, parts, levels, depth, at + 1, found)


cdef int _compare(const void *a, const void *b) noexcept nogil:
    cdef int64_t x = (<const int64_t *> a)[0], y = (<const int64_t *> b)[0]
    return (x > y) - (x < y)


cdef void _sort_unique(Found *found) noexcept nogil:
    cdef int64_t *items = found.items
    cdef int64_t value
    cdef Py_ssize_t at, to, kept = 0
    if found.count > 32:
        qsort(items, found.count, sizeof(int64_t), _compare)
    else:
        for at in range(1, found.count):
            value = items[at]
            to = at
            while to > 0 and items[to - 1] > value:
                items[to] = items[to - 1]
                to -= 1
            items[to] = value
    for at in range(found.count):
        if kept == 0 or items[at] != items[kept - 1]:
            items[kept] = items[at]
            kept += 1
    found.count = kept


@cython.final
@cython.freelist(256)
cdef class _Answer:
    cdef tuple values
    cdef uint64_t generation
    cdef uint32_t bucket


cdef class TopicTrie:
    """Filters with values; `match` answers a topic, `covered` answers a filter."""

    cdef Trie trie
    cdef Py_ssize_t bindings
    cdef Found found
    cdef dict young
    cdef dict old
    cdef Py_ssize_t young_values
    cdef uint64_t generation
    cdef uint64_t generations[BUCKETS]

    def __cinit__(self):
        self.young = {}
        self.old = {}
        # Seeded, so that a peer cannot choose topics that collide.
        self.trie.seed_a = int.from_bytes(os.urandom(8), "little")
        self.trie.seed_b = int.from_bytes(os.urandom(8), "little")
        if not open_trie(&self.trie):
            raise MemoryError

    def __dealloc__(self):
        close_trie(&self.trie)
        free(self.found.items)

    def __len__(self):
        return self.bindings

    cdef int _aged(self, bytes filter, const Level *levels, const Part *parts, int depth) except -1:
        """Forget the cached answers that a change of `filter` makes wrong."""
        cdef int at
        for at in range(depth):
            if levels[at].kind == LEVEL_TEXT:
                continue
            if at == 0:
                self.generation += 1
            else:
                self.generations[parts[0].hash % BUCKETS] += 1
            return 0
        self.young.pop(filter, None)
        self.old.pop(filter, None)
        return 0

    def add(self, bytes filter not None, value):
        """Bind `value` to `filter`. Binding it again changes nothing."""
        cdef Level levels[64]
        cdef Part parts[64]
        cdef int depth, at, added
        cdef uint32_t number = 1, child
        cdef bytes_at text = <bytes_at> PyBytes_AS_STRING(filter)
        if not 0 <= value <= 0x7FFFFFFFFFFFFFFF:
            raise InvalidRequest(f"value {value} is not a non-negative 64-bit number")
        depth = split_levels(text, PyBytes_GET_SIZE(filter), levels)
        if depth < 0:
            refuse_filter(filter, depth)
        hash_levels(&self.trie, text, levels, depth, parts)
        for at in range(depth):
            child = _step(&self.trie, number, &levels[at], &parts[at])
            if child == 0:
                child = _grow(&self.trie, number, &levels[at], &parts[at])
                if child == 0:
                    self._prune(levels, parts, at)
                    raise MemoryError
            number = child
        added = add_value(&self.trie, node_at(&self.trie, number), value)
        if added < 0:
            self._prune(levels, parts, depth)
            raise MemoryError
        if added:
            self.bindings += 1
            self._aged(filter, levels, parts, depth)

    def remove(self, bytes filter not None, value):
        """Remove `value` from `filter`. Returns whether it was there."""
        cdef Level levels[64]
        cdef Part parts[64]
        cdef int depth, at
        cdef uint32_t number = 1
        cdef bytes_at text = <bytes_at> PyBytes_AS_STRING(filter)
        if not 0 <= value <= 0x7FFFFFFFFFFFFFFF:
            return False
        depth = split_levels(text, PyBytes_GET_SIZE(filter), levels)
        if depth < 0:
            return False
        hash_levels(&self.trie, text, levels, depth, parts)
        for at in range(depth):
            number = _step(&self.trie, number, &levels[at], &parts[at])
            if number == 0:
                return False
        if not remove_value(&self.trie, node_at(&self.trie, number), value):
            return False
        self.bindings -= 1
        self._prune(levels, parts, depth)
        self._aged(filter, levels, parts, depth)
        return True

    cdef void _prune(self, const Level *levels, const Part *parts, int depth) noexcept:
        """Free the empty nodes at the end of a path."""
        cdef uint32_t path[65]
        cdef Node *node
        cdef Node *parent
        cdef int at
        path[0] = 1
        for at in range(depth):
            path[at + 1] = _step(&self.trie, path[at], &levels[at], &parts[at])
        for at in range(depth, 0, -1):
            node = node_at(&self.trie, path[at])
            if node.values_count or node.count or node.plus or node.rest:
                return
            parent = node_at(&self.trie, path[at - 1])
            if levels[at - 1].kind == LEVEL_PLUS:
                parent.plus = 0
            elif levels[at - 1].kind == LEVEL_REST:
                parent.rest = 0
            else:
                drop_child(&self.trie, path[at - 1], path[at])
            free_node(&self.trie, path[at])

    cdef tuple _answer(self, bytes topic, uint32_t *bucket):
        cdef Part parts[TOPIC_LEVELS_MAX + 1]
        cdef bytes_at text = <bytes_at> PyBytes_AS_STRING(topic)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(topic), at
        cdef int depth
        cdef uint32_t child
        cdef tuple out
        cdef object value
        bucket[0] = 0
        if size == 0:
            return ()
        depth = split_topic(&self.trie, text, size, parts)
        bucket[0] = parts[0].hash % BUCKETS
        self.found.count = 0
        self.found.failed = False
        if text[0] == c"$":
            # Wildcards at the first level do not match these topics: skip the root's own.
            child = child_of(&self.trie, node_at(&self.trie, 1), parts)
            if child:
                _match(&self.trie, child, parts + 1, depth - 1, &self.found)
        else:
            _match(&self.trie, 1, parts, depth, &self.found)
        if self.found.failed:
            raise MemoryError
        if self.found.count == 0:
            return ()
        _sort_unique(&self.found)
        out = PyTuple_New(self.found.count)
        for at in range(self.found.count):
            value = PyLong_FromLongLong(self.found.items[at])
            Py_INCREF(value)
            PyTuple_SET_ITEM(out, at, value)
        self._calm()
        return out

    cdef void _calm(self) noexcept:
        """Free the memory of a huge answer."""
        if self.found.room > (1 << 16):
            free(self.found.items)
            self.found.items = NULL
            self.found.room = 0

    def match(self, bytes topic not None):
        """Values of every filter that matches `topic`, ascending, each once."""
        cdef PyObject *hit = PyDict_GetItem(self.young, topic)
        cdef _Answer answer
        if hit is NULL:
            hit = PyDict_GetItem(self.old, topic)
            if hit is NULL:
                return self._remember(topic)
        answer = <_Answer> hit
        if answer.generation != self.generation + self.generations[answer.bucket]:
            return self._remember(topic)
        return answer.values

    cdef tuple _remember(self, bytes topic):
        cdef _Answer answer = _Answer.__new__(_Answer)
        answer.values = self._answer(topic, &answer.bucket)
        answer.generation = self.generation + self.generations[answer.bucket]
        if PyBytes_GET_SIZE(topic) > TOPIC_BYTES_MAX:
            return answer.values
        if len(self.young) >= CACHE_TOPICS or self.young_values >= CACHE_VALUES:
            self.old = self.young
            self.young = {}
            self.young_values = 0
        self.young[topic] = answer
        self.young_values += len(answer.values)
        return answer.values

    def match_uncached(self, bytes topic not None):
        """The same, without the cache."""
        cdef uint32_t bucket
        return self._answer(topic, &bucket)

    def covered(self, bytes filter not None):
        """Values of the stored topics (filters without wildcards) that `filter` matches."""
        cdef Level levels[64]
        cdef Part parts[64]
        cdef bytes_at text = <bytes_at> PyBytes_AS_STRING(filter)
        cdef int depth = split_levels(text, PyBytes_GET_SIZE(filter), levels)
        cdef Py_ssize_t at
        cdef list out
        cdef object value
        if depth < 0:
            refuse_filter(filter, depth)
        hash_levels(&self.trie, text, levels, depth, parts)
        self.found.count = 0
        self.found.failed = False
        _covered(&self.trie, 1, parts, levels, depth, 0, &self.found)
        if self.found.failed:
            raise MemoryError
        _sort_unique(&self.found)
        out = PyList_New(self.found.count)
        for at in range(self.found.count):
            value = PyLong_FromLongLong(self.found.items[at])
            Py_INCREF(value)
            PyList_SET_ITEM(out, at, value)
        self._calm()
        return out

    def memory_bytes(self):
        """The memory of nodes, tables, values and names, without the cache."""
        return (
            self.trie.chunks_count * (CHUNK_NODES * sizeof(Node) + 64)
            + self.trie.chunks_room * sizeof(Chunk)
            + self.trie.extra_bytes
        )


cdef inline uint32_t _step(
    const Trie *trie, uint32_t number, const Level *level, const Part *part
) noexcept nogil:
    """The node of one more level of a filter; 0 if there is none."""
    cdef Node *node = node_at(trie, number)
    if level.kind == LEVEL_PLUS:
        return node.plus
    if level.kind == LEVEL_REST:
        return node.rest
    return child_of(trie, node, part)


cdef uint32_t _grow(
    Trie *trie, uint32_t number, const Level *level, const Part *part
) noexcept nogil:
    """Make the node of one more level; 0 if there is no memory."""
    cdef bint text = level.kind == LEVEL_TEXT
    cdef uint32_t child = new_node(
        trie, part.at, <uint16_t> part.size if text else 0, part.hash if text else 0
    )
    if child == 0:
        return 0
    if level.kind == LEVEL_PLUS:
        node_at(trie, number).plus = child
    elif level.kind == LEVEL_REST:
        node_at(trie, number).rest = child
    elif not add_child(trie, number, child):
        free_node(trie, child)
        return 0
    return child
