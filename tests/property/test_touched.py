"""What a change of streams touches is found without asking everything: does it find the same?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onelog.base.topics import covers, overlap
from onelog.log.touched import ByFilters, TopicCache, Touched

LEVELS = st.sampled_from(["a", "b", "$x", ""])
TOPICS = st.lists(LEVELS, min_size=1, max_size=3).map("/".join).filter(bool)
WILD = st.lists(st.sampled_from(["a", "b", "$x", "", "+"]), min_size=1, max_size=3)
FILTERS = st.one_of(
    st.just("#"),
    WILD.map("/".join).filter(bool),
    WILD.map(lambda levels: "/".join([*levels, "#"])),
)
CHANGES = st.frozensets(FILTERS, max_size=3)


@given(st.frozensets(TOPICS), st.lists(CHANGES, max_size=3))
def test_a_cache_of_topics_keeps_what_no_change_touched_and_only_that(topics, changes):
    cache: TopicCache[int] = TopicCache(1000)
    for topic in topics:
        cache.keep(topic, len(topic))
    left = set(topics)
    for change in changes:
        cache.drop(Touched(change))
        left -= {topic for topic in left if any(covers(text, topic) for text in change)}
        if any(text.split("/")[0] in ("+", "#") for text in change):
            left = set()  # it concerns nearly everything: nobody looks what it does not
        assert set(cache.known) == left
        for topic in left:
            assert cache.known[topic] == len(topic)
    for topic in topics:
        cache.keep(topic, 0)
    assert set(cache.known) == set(topics)


@given(st.frozensets(st.lists(FILTERS, min_size=0, max_size=3).map(tuple)), CHANGES)
def test_values_by_filters_are_found_by_every_filter_that_overlaps_theirs(keys, change):
    values: ByFilters[str] = ByFilters()
    for key in keys:
        values.put(key, "/".join(key))
        values.put(key, "again")
    assert len(values) == len(keys)
    expected = {key for key in keys if any(overlap(mine, text) for mine in key for text in change)}
    found = values.touched_by(Touched(change))
    assert len(found) == len(set(found))
    assert set(found) == expected
    for key in expected:
        assert values.pop(key) == "again"
        assert values.get(key) is None
        assert values.pop(key) is None
    assert values.touched_by(Touched(change)) == []
    assert len(values) == len(keys) - len(expected)
    assert all(values.get(key) == "again" for key in keys - expected)
    values.clear()
    assert len(values) == 0
