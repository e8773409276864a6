"""The trie, compiled and interpreted, against a list of filters that is asked one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onelog.base.errors import InvalidName
from onelog.kernel import pure

native = pytest.importorskip("onelog.kernel._native", exc_type=ImportError)

word = st.sampled_from([b"a", b"b", b"", b"$SYS", b"$", b"a-level-of-more-than-16", b"x" * 16])
topic = st.lists(word, min_size=1, max_size=5).map(b"/".join)
filters = st.builds(
    lambda levels, rest: b"/".join(levels + rest),
    st.lists(word | st.just(b"+"), max_size=4),
    st.sampled_from([[], [b"#"], [b"+"]]),
).filter(bool)


def names(text, candidate):
    """MQTT's rule, written as plainly as possible."""
    if not candidate or not text:
        return False
    wanted, levels = text.split(b"/"), candidate.split(b"/")
    if candidate.startswith(b"$") and wanted[0] in (b"+", b"#"):
        return False
    if wanted[-1] == b"#":
        wanted = wanted[:-1]
        if len(levels) < len(wanted):
            return False
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(
        w in (b"+", level) for w, level in zip(wanted, levels, strict=True)
    )


def is_topic(text):
    return b"+" not in text and b"#" not in text


class Tries(RuleBasedStateMachine):
    """Both tries and a set of (filter, value), changed alike and asked alike."""

    def __init__(self):
        super().__init__()
        self.model = set()
        self.tries = [native.TopicTrie(), pure.TopicTrie()]

    @rule(text=filters | topic.filter(bool), value=st.integers(0, 5) | st.just((1 << 63) - 1))
    def add(self, text, value):
        self.model.add((text, value))
        for trie in self.tries:
            assert trie.add(text, value) is None

    @rule(data=st.data())
    def remove(self, data):
        if not self.model:
            return
        entry = data.draw(st.sampled_from(sorted(self.model)))
        self.model.discard(entry)
        for trie in self.tries:
            assert trie.remove(*entry) is True
            assert trie.remove(*entry) is False

    @rule(text=filters, value=st.integers(0, 5))
    def remove_what_may_be_missing(self, text, value):
        was_there = (text, value) in self.model
        self.model.discard((text, value))
        for trie in self.tries:
            assert trie.remove(text, value) is was_there

    @rule(name=topic)
    def ask(self, name):
        expected = tuple(sorted({value for text, value in self.model if names(text, name)}))
        for trie in self.tries:
            assert trie.match(name) == expected
            assert trie.match_uncached(name) == expected

    @rule(text=filters)
    def cover(self, text):
        expected = sorted({v for name, v in self.model if is_topic(name) and names(text, name)})
        for trie in self.tries:
            assert trie.covered(text) == expected

    @invariant()
    def counts_agree(self):
        for trie in self.tries:
            assert len(trie) == len(self.model)


TestTries = Tries.TestCase
TestTries.settings = settings(max_examples=60, stateful_step_count=40)


@given(filters, topic)
@settings(max_examples=500)
def test_a_filter_matches_what_the_plain_rule_says(text, name):
    for module in (native, pure):
        assert module.TopicFilter(text).matches(name) is names(text, name)


@given(st.lists(st.sampled_from(list(b"ab/+#$")), max_size=12).map(bytes))
@settings(max_examples=500)
def test_both_refuse_the_same_filters_in_the_same_words(text):
    said = []
    for module in (native, pure):
        for make in (module.TopicFilter, lambda t, m=module: m.TopicTrie().add(t, 1)):
            try:
                make(text)
                said.append("")
            except InvalidName as error:
                said.append(str(error))
    assert len(set(said)) == 1


@given(st.sets(st.binary(min_size=1, max_size=20).filter(lambda b: not set(b) & set(b"+#/"))))
@settings(max_examples=50)
def test_a_node_with_many_children_finds_each_of_them_and_gives_the_memory_back(levels):
    """Fills and empties one open-addressing table; a bad removal loses a probe chain."""
    trie = native.TopicTrie()
    before = trie.memory_bytes()
    order = sorted(levels) + [b"%d" % n for n in range(1000)]
    bound = {name: n for n, name in enumerate(order)}
    for name, n in bound.items():
        trie.add(b"p/" + name, n)
    left = dict(bound)
    for name, n in bound.items():
        assert trie.match_uncached(b"p/" + name) == (n,)
        assert trie.remove(b"p/" + name, n)
        del left[name]
        if len(left) % 97 == 0:
            assert all(trie.match_uncached(b"p/" + k) == (v,) for k, v in left.items())
    assert len(trie) == 0
    assert trie.memory_bytes() <= before + 4 * (512 * 64 + 128)
