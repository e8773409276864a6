"""I7: names are a bijection between topics and each protocol's names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.base.errors import InvalidName
from onelog.base.names import (
    from_dotted,
    from_routing_key,
    from_subject,
    to_dotted,
    to_routing_key,
    to_subject,
)
from onelog.base.topics import check_filter, covers, matches, overlap

LEVEL_CHARS = st.sampled_from(list("ax_5FB2E0 .-*>é€+#")) | st.characters(
    exclude_categories=("Cs",), exclude_characters="\0/"
)
levels = st.text(LEVEL_CHARS, max_size=8).filter(lambda s: "+" not in s and "#" not in s)
topics = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
wild_levels = levels | st.just("+")
filters = st.builds(
    lambda head, rest: "/".join([*head, "#"] if rest else head),
    st.lists(wild_levels, min_size=1, max_size=4),
    st.booleans(),
).filter(bool)
names = st.text(st.sampled_from(list("ax_25BEF0.-")), min_size=1, max_size=24)


@given(filters)
def test_a_kafka_name_leads_back_to_its_topic_or_filter(text: str) -> None:
    try:
        name = to_dotted(text)
    except InvalidName:
        assert len(text.encode()) * 5 > 249
        return
    assert from_dotted(name) == text
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert name not in (".", "..")


@given(names)
def test_a_kafka_name_is_canonical_or_refused(name: str) -> None:
    try:
        text = from_dotted(name)
    except InvalidName:
        return
    assert to_dotted(text) == name


@given(filters)
def test_a_nats_subject_leads_back_to_its_topic_or_filter(text: str) -> None:
    subject = to_subject(text)
    assert from_subject(subject) == text
    assert not any(char.isspace() for char in subject)
    assert "" not in subject.split(".")


@given(st.text(LEVEL_CHARS | st.just("/"), max_size=20))
def test_every_amqp_routing_key_has_its_own_topic(key: str) -> None:
    assert to_routing_key(from_routing_key(key)) == key


@given(topics)
def test_every_topic_has_its_own_amqp_routing_key(topic: str) -> None:
    assert from_routing_key(to_routing_key(topic)) == topic


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sensors/d1/telemetry", "sensors.d1.telemetry"),
        ("sensors/+/telemetry", "sensors._x2B_.telemetry"),
        ("a/#", "a._x23_"),
        ("v1.2/x", "v1_x2E_2.x"),
        ("a//b", "a..b"),
        ("/", "_x2F_"),
        ("//", "_x2F__x2F_"),
        ("_x2B_", "_x5F_x2B_"),
        ("é", "_xC3__xA9_"),
    ],
)
def test_kafka_names_are_what_the_reference_says(text: str, name: str) -> None:
    assert to_dotted(text) == name
    assert from_dotted(name) == text


@pytest.mark.parametrize("name", [".", "..", "", "a b", "_x41_", "_xFF_", "a_x2B_b", "ä"])
def test_names_that_are_not_canonical_are_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        from_dotted(name)


def test_mqtt_and_amqp_wildcards_meet_on_the_same_words() -> None:
    assert from_routing_key("sensors.d1.t") == "sensors/d1/t"
    assert to_routing_key("v1.2/x") == "v1/2.x"


@pytest.mark.parametrize(
    ("text", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("+/+", "/a", True),
        ("+", "a/b", False),
    ],
)
def test_filters_match_as_mqtt_says(text: str, topic: str, expected: bool) -> None:
    assert matches(text, topic) is expected


BAD_FILTERS = ["", "a#", "#/a", "a/b+", "a\0b", "a/" * 70 + "a", "x" * 2000, "\ud800"]


@pytest.mark.parametrize("text", BAD_FILTERS)
def test_bad_filters_are_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        check_filter(text)


@given(filters, filters, topics)
def test_two_filters_that_cover_one_topic_overlap(one: str, other: str, topic: str) -> None:
    if covers(one, topic) and covers(other, topic):
        assert overlap(one, other)
