"""Every topic has exactly one home: the stream with the most specific capture (DESIGN 3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.base.errors import Conflict, TopicNotFound
from onelog.base.topics import covers, overlap
from onelog.log import resolution
from onelog.log.resolution import Resolver

level = st.sampled_from(["a", "b", "c", ""])
topics = st.lists(level, min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.builds(
    lambda head, rest: "/".join([*head, "#"] if rest else head),
    st.lists(level | st.just("+"), min_size=1, max_size=3),
    st.booleans(),
).filter(bool)


def rank(text: str, topic: str) -> list[int]:
    """The order that DESIGN 3 gives: literal, then +, then #, level by level."""
    levels = text.split("/")
    depth = len(topic.split("/"))
    ranks = [{"+": 1, "#": 2}.get(level, 0) for level in levels]
    # `a/#` matching `a` is less specific there than the literal `a`.
    return ranks if len(levels) >= depth else [*ranks, 9]


@given(st.sets(filters, max_size=8), topics)
def test_the_most_specific_capture_wins(captures: set[str], topic: str) -> None:
    resolver = Resolver()
    resolver.replace("main", ("#",))
    for number, text in enumerate(sorted(captures - {"#"})):
        resolver.replace(f"s{number}", (text,))
    candidates = [("#", "main")] + [
        (text, f"s{number}") for number, text in enumerate(sorted(captures - {"#"}))
    ]
    matching = [(text, owner) for text, owner in candidates if covers(text, topic)]
    best = min(matching, key=lambda row: rank(row[0], topic))
    assert resolver.home(topic) == best[1]


@given(st.sets(filters, max_size=8), filters, topics)
def test_streams_of_a_filter_include_the_home_of_every_topic_it_matches(
    captures: set[str], wanted: str, topic: str
) -> None:
    resolver = Resolver()
    resolver.replace("main", ("#",))
    for number, text in enumerate(sorted(captures - {"#"})):
        resolver.replace(f"s{number}", (text,))
    if covers(wanted, topic):
        assert resolver.home(topic) in resolver.homes_of_filter(wanted)


def test_a_filter_is_captured_by_one_stream_only() -> None:
    resolver = Resolver()
    resolver.replace("one", ("a/#",))
    with pytest.raises(Conflict, match="stream one"):
        resolver.replace("two", ("b", "a/#"))
    with pytest.raises(TopicNotFound):
        resolver.home("b")


def test_a_change_of_captures_is_seen_at_once() -> None:
    resolver = Resolver()
    resolver.replace("main", ("#",))
    assert resolver.home("a/b") == "main"
    resolver.replace("new", ("a/#",))
    assert resolver.home("a/b") == "new"
    resolver.replace("new", ())
    assert resolver.home("a/b") == "main"
    assert resolver.home("$SYS/x") == "main"


captured = st.lists(filters, max_size=3, unique=True).map(tuple)


@given(
    st.lists(st.tuples(st.sampled_from("pqrs"), captured), max_size=12),
    st.lists(filters | topics, max_size=4),
    st.lists(topics, max_size=4),
)
def test_after_any_changes_it_answers_as_one_that_was_made_with_what_is_left(
    changes: list[tuple[str, tuple[str, ...]]], wanted: list[str], asked: list[str]
) -> None:
    """Also what it answered before, and had remembered."""
    resolver, left = Resolver(), {"main": ("#",)}
    resolver.replace("main", ("#",))
    for stream, captures in changes:
        for topic in asked:
            resolver.home(topic)
        try:
            resolver.replace(stream, captures)
        except Conflict:
            taken = {text for name, row in left.items() if name != stream for text in row}
            assert taken & set(captures)
        else:
            left[stream] = captures
    fresh = Resolver()
    for stream, captures in left.items():
        fresh.replace(stream, captures)
    for topic in asked:
        assert resolver.home(topic) == fresh.home(topic)
        assert resolver.homes_of_topic(topic) == fresh.homes_of_topic(topic)
    for text in wanted:
        touched = {name for name, row in left.items() if any(overlap(one, text) for one in row)}
        assert resolver.homes_of_filter(text) == sorted(touched)
    for stream in "pqrs":
        resolver.replace(stream, ())
    assert not resolver._root.children, "nothing is left of streams that are gone"


def test_a_change_costs_what_it_changes_and_not_what_there_is() -> None:
    """A start with thousands of streams replaces each of them once."""
    made = 0

    class Counted(resolution._Node):
        def __init__(self) -> None:
            nonlocal made
            made += 1
            super().__init__()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolution, "_Node", Counted)
        resolver = Resolver()
        resolver.replace("main", ("#",))
        for number in range(2_000):
            resolver.replace(f"s{number}", (f"s/{number}/#",))
            assert resolver.home(f"s/{number}/t") == f"s{number}"
    assert made <= 2 + 2_000


@pytest.mark.parametrize("capture", ["a", "a/#", "a/+"])
def test_a_capture_leaves_what_is_remembered_of_other_topics(capture: str) -> None:
    resolver = Resolver()
    resolver.replace("main", ("#",))
    topics = ("a", "b", "a/1", "b/1")
    assert {resolver.home(topic) for topic in topics} == {"main"}
    resolver.replace("a", (capture,))
    left = {topic for topic in topics if not covers(capture, topic)}
    assert set(resolver._cache.known) == left
    for topic in topics:
        assert resolver.home(topic) == ("main" if topic in left else "a")
