"""What both kernels promise about topics: filters, selection, the topic index, the trie."""

import random
import struct

import pytest

from onelog.base.errors import CorruptBatch, InvalidName, InvalidRequest
from onelog.base.limits import TOPIC_BYTES_MAX, TOPIC_LEVELS_MAX


@pytest.fixture(params=["pure", "_native"])
def kernel(request):
    """The kernel, interpreted and compiled; skipped where it was not built."""
    return pytest.importorskip(f"onelog.kernel.{request.param}", exc_type=ImportError)


def batch(kernel, base_offset, topics, attributes=0):
    builder = kernel.BatchBuilder(True)
    builder.extend([(t, t, b"v%d" % i, (), 1000 + i) for i, t in enumerate(topics)])
    return builder.seal(base_offset, attributes=attributes)


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        (b"a/b", [b"a/b"], [b"a", b"a/b/", b"a/b/c", b"A/b"]),
        (b"a/+", [b"a/b", b"a/"], [b"a", b"a/b/c"]),
        (b"+", [b"a"], [b"/a", b"$SYS", b""]),
        (b"a/#", [b"a", b"a/", b"a/b/c"], [b"ab", b"b"]),
        (b"#", [b"a", b"/", b"a/b"], [b"$SYS", b"$SYS/x", b""]),
        (b"$SYS/#", [b"$SYS", b"$SYS/a/b"], [b"SYS"]),
        (b"+/+/c", [b"a/b/c", b"//c"], [b"$a/b/c", b"a/c"]),
        (b"a/+/#", [b"a/b", b"a/b/c"], [b"a"]),
    ],
)
def test_a_filter_matches_by_the_rules_of_mqtt(kernel, text, yes, no):
    """MQTT5 4.7."""
    matcher, trie = kernel.TopicFilter(text), kernel.TopicTrie()
    trie.add(text, 1)
    assert matcher.exact == (not set(text) & set(b"+#"))
    for topic in yes:
        assert matcher.matches(topic), topic
        assert trie.match(topic) == (1,), topic
    for topic in no:
        assert not matcher.matches(topic), topic
        assert trie.match(topic) == (), topic


@pytest.mark.parametrize("text", [b"", b"a/#/b", b"a+", b"a/b#", b"##", b"#/a", b"+a/b"])
def test_what_is_no_filter_is_refused(kernel, text):
    for refused in (kernel.TopicFilter, lambda t: kernel.TopicTrie().add(t, 1)):
        with pytest.raises(InvalidName):
            refused(text)
    assert kernel.TopicTrie().remove(text, 1) is False


def test_filters_have_a_longest_and_a_deepest(kernel):
    """I8."""
    deepest = b"/".join([b"x"] * TOPIC_LEVELS_MAX)
    longest = b"y" * TOPIC_BYTES_MAX
    trie = kernel.TopicTrie()
    for good in (deepest, longest):
        trie.add(good, 3)
        assert trie.match(good) == (3,)
        assert kernel.TopicFilter(good).matches(good)
    for bad in (deepest + b"/x", longest + b"y"):
        with pytest.raises(InvalidName):
            trie.add(bad, 1)
    trie.add(b"#", 9)
    assert trie.match(deepest + b"/x/x/x") == (9,)
    assert trie.match(b"z/" * 5000) == (9,)


def test_selection_takes_the_matching_records_and_says_where_to_go_on(kernel):
    data = batch(kernel, 10, [b"a/1", b"b", b"a/2"]) + batch(kernel, 20, [b"a/3", b"b"])
    chosen = kernel.TopicFilter(b"a/+")
    found, going_on = kernel.select_records(data, chosen, 0, 1000, 10)
    assert found == [
        (b"a/1", 10, 1000, b"a/1", b"v0", ()),
        (b"a/2", 12, 1002, b"a/2", b"v2", ()),
        (b"a/3", 20, 1000, b"a/3", b"v0", ()),
    ]
    assert going_on == 22
    assert [r[1] for r in kernel.select_records(data, chosen, 11, 20, 10)[0]] == [12]
    assert kernel.select_records(data, chosen, 11, 20, 10)[1] == 20
    found, going_on = kernel.select_records(data, chosen, 0, 1000, 2)
    assert ([r[1] for r in found], going_on) == ([10, 12], 13)
    assert kernel.select_records(data, chosen, 7, 1000, 0) == ([], 7)
    assert kernel.select_records(b"", chosen, 7, 1000, 5) == ([], 7)
    assert kernel.select_records(data, chosen, 50, 60, 5) == ([], 50)


def test_selection_without_a_filter_takes_every_record(kernel):
    data = batch(kernel, 0, [b"a", None])
    found, _ = kernel.select_records(data, None, 0, 1000, 10)
    assert [record[0] for record in found] == [b"a", None]


def test_a_default_topic_stands_for_every_record(kernel):
    data = batch(kernel, 0, [b"x", b"y"])
    exact = kernel.TopicFilter(b"orders")
    found, going_on = kernel.select_records(data, exact, 0, 1000, 10, b"orders")
    assert [(record[0], record[3]) for record in found] == [(b"orders", b"x"), (b"orders", b"y")]
    assert kernel.select_records(data, exact, 0, 1000, 10, b"else") == ([], going_on)


@pytest.mark.parametrize("attributes", [1, 4, 32, 48])
def test_selection_stops_before_a_compressed_or_control_batch(kernel, attributes):
    plain = batch(kernel, 10, [b"a"])
    data = plain + batch(kernel, 20, [b"a"], attributes) + batch(kernel, 30, [b"a"])
    found, going_on = kernel.select_records(data, kernel.TopicFilter(b"a"), 0, 1000, 10)
    assert ([record[1] for record in found], going_on) == ([10], 20)
    # One that lies below the start is none of the caller's business.
    found, going_on = kernel.select_records(data, kernel.TopicFilter(b"a"), 21, 1000, 10)
    assert ([record[1] for record in found], going_on) == ([30], 31)


def entries(rows):
    return b"".join(struct.pack("<II", *row) for row in rows)


def test_a_topic_chunk_is_sorted_and_found_again(kernel):
    rows = [(9, 1), (2, 7), (9, 0), (0xFFFFFFFF, 3)]
    made = kernel.sort_topic_entries(entries(rows), 10)
    assert made == entries([(2, 17), (9, 10), (9, 11), (0xFFFFFFFF, 13)])
    index = kernel.make_topic_chunk(made) + kernel.make_topic_chunk(entries([(9, 5), (9, 11)]))
    assert kernel.check_topic_chunks(index, len(index)) == len(index)
    assert kernel.lookup_topic_chunks(index, len(index), 9, 0, 10) == [5, 10, 11]
    assert kernel.lookup_topic_chunks(index, len(index), 9, 6, 10) == [10, 11]
    assert kernel.lookup_topic_chunks(index, len(index), 9, 0, 2) == [5, 10]
    assert kernel.lookup_topic_chunks(index, len(index), 0xFFFFFFFF, 0, 2) == [13]
    assert kernel.lookup_topic_chunks(index, len(index), 3, 0, 2) == []


def test_a_torn_topic_index_is_cut_to_its_intact_chunks(kernel):
    one = kernel.make_topic_chunk(entries([(1, 1)]))
    index = one + kernel.make_topic_chunk(b"") + one
    for end in range(len(index)):
        whole = [n for n in (0, len(one), len(one) + 16) if n <= end]
        assert kernel.check_topic_chunks(index, end) == max(whole)
    damaged = bytearray(index)
    damaged[-1] ^= 1
    assert kernel.check_topic_chunks(damaged, len(damaged)) == len(one) + 16
    with pytest.raises(CorruptBatch):
        kernel.lookup_topic_chunks(index, len(index) - 1, 1, 0, 10)
    with pytest.raises(InvalidRequest):
        kernel.check_topic_chunks(index, len(index) + 1)


def test_relative_offsets_that_do_not_fit_are_refused(kernel):
    with pytest.raises(InvalidRequest):
        kernel.sort_topic_entries(entries([(1, 0xFFFFFFFF)]), 1)
    with pytest.raises(InvalidRequest):
        kernel.sort_topic_entries(entries([(1, 3)]), -4)
    with pytest.raises(InvalidRequest):
        kernel.sort_topic_entries(b"1234567")


def test_moved_pairs_keep_their_order(kernel):
    rows = [(9, 4), (1, 7), (9, 2), (0xFFFFFFFF, 0)]
    assert kernel.move_topic_entries(entries(rows), 10) == entries([(k, r + 10) for k, r in rows])
    assert kernel.move_topic_entries(b"", 3) == b""
    for bad, add in ((entries([(1, 0xFFFFFFFF)]), 1), (entries([(1, 3)]), -4), (b"1234567", 0)):
        with pytest.raises(InvalidRequest):
            kernel.move_topic_entries(bad, add)


def test_short_runs_of_pairs_are_packed_together_and_long_ones_are_left(kernel):
    short, other, long = entries([(9, 4), (1, 7)]), entries([(3, 0)]), entries([(5, 1)] * 3)
    rows = [(short, 10), (long, 2), (b"", 5), (other, 0xFFFFFFFF)]
    moved = entries([(9, 14), (1, 17), (3, 0xFFFFFFFF)])
    assert kernel.pack_topic_entries(rows, 24) == (moved, [(long, 2)])
    assert kernel.pack_topic_entries([], 24) == (b"", [])
    for bad in ((entries([(1, 1)]), 0xFFFFFFFF), (entries([(1, 3)]), -4), (b"1234567", 0)):
        with pytest.raises(InvalidRequest):
            kernel.pack_topic_entries([(short, 1), bad], 24)
    for add in (1 << 62, -(1 << 62)):
        with pytest.raises(InvalidRequest):
            kernel.pack_topic_entries([(other, add)], 24)
    with pytest.raises(InvalidRequest):
        kernel.pack_topic_entries([(b"x" * 31, 0)], 24)


def test_a_value_bound_by_several_filters_is_answered_once_and_in_order(kernel):
    trie = kernel.TopicTrie()
    for text, value in ((b"a/b", 7), (b"a/+", 3), (b"#", 7), (b"a/#", 1), (b"a/b", 7)):
        trie.add(text, value)
    assert trie.match(b"a/b") == (1, 3, 7)
    assert len(trie) == 4
    with pytest.raises(InvalidRequest):
        trie.add(b"a", -1)
    with pytest.raises(InvalidRequest):
        trie.add(b"a", 1 << 63)


def test_a_cached_answer_never_outlives_a_change(kernel):
    trie = kernel.TopicTrie()
    for text in (b"a/b", b"a/+", b"+/b", b"#", b"a/#", b"+/+"):
        assert trie.match(b"a/b") == ()
        trie.add(text, 5)
        assert trie.match(b"a/b") == (5,)
        trie.add(text, 6)
        assert trie.match(b"a/b") == (5, 6)
        assert trie.remove(text, 5)
        assert trie.match(b"a/b") == (6,)
        assert trie.remove(text, 6)
    assert trie.match(b"a/b") == ()


def test_the_match_cache_is_bounded(kernel):
    """I8: far more topics than it holds, and the answers stay right."""
    trie = kernel.TopicTrie()
    trie.add(b"t/+", 1)
    for n in range(70_000):
        assert trie.match(b"t/%d" % n) == (1,)
    trie.add(b"t/5", 2)
    assert trie.match(b"t/5") == (1, 2)
    assert trie.match(b"t/69999") == (1,)


def test_a_filter_covers_the_stored_topics_it_names(kernel):
    trie = kernel.TopicTrie()
    for value, text in enumerate([b"a", b"a/b", b"a/c", b"$SYS/x", b"a/+", b"#", b"b/b"]):
        trie.add(text, value)
    assert trie.covered(b"#") == [0, 1, 2, 6]
    assert trie.covered(b"a/#") == [0, 1, 2]
    assert trie.covered(b"+/b") == [1, 6]
    assert trie.covered(b"$SYS/#") == [3]
    assert trie.covered(b"a/b") == [1]
    assert trie.covered(b"nothing/#") == []


def test_many_values_on_one_filter_come_and_go(kernel):
    trie = kernel.TopicTrie()
    for value in (5, 1, 9, 3, 7, 2):
        trie.add(b"t", value)
    assert trie.match(b"t") == (1, 2, 3, 5, 7, 9)
    for value in (1, 9, 5):
        assert trie.remove(b"t", value)
    assert trie.match(b"t") == (2, 3, 7)
    assert not trie.remove(b"t", 5)


def test_an_emptied_trie_holds_no_more_than_a_small_one(kernel):
    """I8: subscribers that come and go leave nothing behind."""
    trie = kernel.TopicTrie()
    sizes = []
    for _ in range(3):
        for n in range(2000):
            trie.add(b"p/%d/a-rather-long-level-name-%d/+" % (n % 50, n), n)
        sizes.append(trie.memory_bytes())
        for n in range(2000):
            assert trie.remove(b"p/%d/a-rather-long-level-name-%d/+" % (n % 50, n), n)
    assert sizes[0] == sizes[1] == sizes[2]
    assert len(trie) == 0


@pytest.mark.parametrize("size", [1, 2, 1024])
def test_pairs_meet_the_topics_whose_bit_is_set(kernel, size):
    chance = random.Random(size)
    for _ in range(200):
        wanted = [chance.randrange(1 << 32) for _ in range(chance.randrange(4))]
        pairs = [(chance.randrange(1 << 32), 7) for _ in range(chance.randrange(10))]
        pairs += [(key, 3) for key in wanted if chance.random() < 0.1]
        bits = bytearray(size)
        for key in wanted:
            bits[key % (size * 8) // 8] |= 1 << key % 8
        met = {key % (size * 8) for key in wanted} & {key % (size * 8) for key, _ in pairs}
        assert kernel.meets_topics(entries(pairs), bits) == bool(met)


def test_a_table_of_bits_has_a_power_of_two_of_bytes(kernel):
    for size in (0, 3, 1000):
        with pytest.raises(InvalidRequest, match="power of two"):
            kernel.meets_topics(b"", bytes(size))
    with pytest.raises(InvalidRequest, match="pairs"):
        kernel.meets_topics(b"1234567", bytes(8))
