"""Every topic has exactly one home: the stream with the most specific capture (DESIGN 3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.base.errors import Conflict, TopicNotFound
from onelog.base.topics import covers
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
