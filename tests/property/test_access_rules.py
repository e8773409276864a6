"""The compiled judge gives the answers of the plain definition, for any rules and questions."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from onelog.base.topics import covers, matches
from onelog.security.access.judging import AccessJudge, Verdict, selectors_of
from onelog.security.access.rules import ACTIONS, Rule, Target, check_rule
from onelog.security.principals import Action, Kind, Principal

NAMES = ("ann", "bob", "a", "+", "a/b", "anonymous", "ann*")
LEVELS = ("a", "b", "ab", "", "$q", "ann", "%u")
TOPICS = [
    "/".join(levels)
    for size in (1, 2, 3)
    for levels in itertools.product(("a", "b", "ab", "$q", "ann"), repeat=size)
]
SELECTORS = ("user:ann", "user:bob", "group:g", "everyone", "anonymous", "claim:k=v")

filters = st.one_of(
    st.lists(st.sampled_from((*LEVELS, "+", "%c", "a%u")), min_size=1, max_size=3).map("/".join),
    st.lists(st.sampled_from((*LEVELS, "+", "%u")), max_size=2).map(lambda x: "/".join([*x, "#"])),
).filter(bool)
prefixes = st.lists(st.sampled_from(("a", "b", "", "ab", "%u")), min_size=1, max_size=3).map(
    "/".join
)
globs = st.lists(st.sampled_from(("a", "b", "*", "/", "%u", "group")), min_size=1, max_size=5).map(
    "".join
)
plain_filters = st.one_of(
    st.sampled_from(TOPICS),
    st.lists(st.sampled_from(("a", "b", "ab", "+", "$q")), min_size=1, max_size=3).map("/".join),
    st.lists(st.sampled_from(("a", "b", "+")), max_size=2).map(lambda x: "/".join([*x, "#"])),
)
principals = st.builds(
    Principal,
    st.sampled_from(NAMES),
    st.just("mqtt"),
    st.sampled_from(("", "a", "b", "#")),
    st.booleans(),
    st.sampled_from(((), ("k=v",))),
)


@st.composite
def rule_lists(draw) -> list[Rule]:
    found = []
    for number in range(draw(st.integers(0, 8))):
        target = draw(st.sampled_from(list(Target)))
        pattern = draw({Target.TOPIC: filters, Target.PREFIX: prefixes}.get(target, globs))
        effect = draw(st.sampled_from(("allow", "deny")))
        # A rule that denies to describe denies all: it is not made for less.
        known = [
            each for each in ACTIONS[target] if effect == "allow" or each is not Action.DESCRIBE
        ]
        actions = draw(st.sets(st.sampled_from(known), min_size=1))
        found.append(
            check_rule(
                Rule(
                    id=str(number),
                    effect=effect,
                    who=tuple(draw(st.sets(st.sampled_from(SELECTORS), min_size=1))),
                    actions=tuple(sorted(actions)),
                    target=target,
                    pattern=pattern,
                )
            )
        )
    return found


def fill(text: str, principal: Principal) -> str | None:
    """Written as plainly as can be: one placeholder after the other, from the left."""
    made, rest = "", text
    while rest:
        if rest[:2] in ("%u", "%c"):
            value = principal.name if rest[1] == "u" else principal.client_id
            if not value or set(value) & set("/+#\0"):
                return None
            made, rest = made + value, rest[2:]
        else:
            made, rest = made + rest[0], rest[1:]
    return made


def glob(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(glob(pattern[1:], name[at:]) for at in range(len(name) + 1))
    return bool(name) and pattern[0] == name[0] and glob(pattern[1:], name[1:])


def is_about(rule: Rule, principal: Principal, resource: str) -> bool:
    """Whether a rule's pattern matches a topic or name."""
    if rule.target in (Target.CURSOR, Target.SERVER):
        # No test name has a `*` in it that a placeholder could bring into the pattern, but one.
        marked = rule.pattern.replace("*", "\1")
        known = fill(marked, principal)
        if known is None:
            return False
        return glob(known.replace("*", "\2").replace("\1", "*"), resource.replace("*", "\2"))
    known = fill(rule.pattern, principal)
    if known is None:
        return False
    return covers(known, resource) if rule.target is Target.TOPIC else resource.startswith(known)


def plain(rules, principal, groups, action, resource, kind) -> Verdict:
    if not rules:
        return Verdict(True)
    mine = set(selectors_of(principal, groups))
    wanted = Action.SUBSCRIBE if action is Action.DELIVER else action
    about = [
        rule
        for rule in rules
        if set(rule.who) & mine
        and wanted in rule.actions
        and rule.target.kind is kind
        and is_about(rule, principal, resource)
    ]
    for effect in ("deny", "allow"):
        for rule in about:
            if rule.effect == effect:
                return Verdict(effect == "allow", rule)
    return Verdict(False)


@given(rule_lists(), principals, st.sampled_from((("g",), ())), st.data())
def test_the_judge_says_what_the_plain_definition_says(rules, principal, groups, data):
    judge = AccessJudge(rules)
    selectors = selectors_of(principal, groups)
    action = data.draw(st.sampled_from(list(Action)))
    kind = data.draw(st.sampled_from(list(Kind)))
    resource = data.draw(
        st.sampled_from(TOPICS)
        if kind is Kind.TOPIC
        else st.lists(st.sampled_from(("a", "b", "/", "group", "ann", "*"))).map("".join)
    )
    wanted = plain(rules, principal, groups, action, resource, kind)
    assert judge.judge(principal, selectors, action, resource, kind) == wanted


@given(rule_lists(), principals, st.one_of(plain_filters, st.sampled_from(TOPICS)), st.data())
def test_a_judge_whose_rules_came_and_went_is_like_a_new_one(rules, principal, resource, data):
    going = data.draw(st.sets(st.sampled_from(rules)) if rules else st.just(set()))
    judge = AccessJudge(going)
    for rule in data.draw(st.permutations([rule for rule in rules if rule not in going])):
        judge.add(rule)
    for rule in data.draw(st.permutations(sorted(going, key=lambda rule: rule.id))):
        judge.remove(rule)
    left = [rule for rule in rules if rule not in going]
    fresh = AccessJudge(left)
    assert judge.rules == tuple(left)
    assert judge.tells_clients_apart == fresh.tells_clients_apart
    assert judge.highest_number == max((int(rule.id) for rule in left), default=0)
    selectors = selectors_of(principal, ("g",))
    for kind, name in ((Kind.TOPIC, resource), (Kind.CURSOR, "group/a"), (Kind.SERVER, "ab")):
        for action in Action:
            asked = principal, selectors, action, name, kind
            assert judge.judge(*asked) == fresh.judge(*asked)
    for rule in left:
        judge.remove(rule)
    assert not judge._books


@given(rule_lists(), principals, plain_filters)
def test_what_is_allowed_of_a_filter_fits_what_is_allowed_of_its_topics(rules, principal, text):
    """A subscription is refused only if none of its topics is allowed. What is allowed as a whole
    is allowed for each topic, and what is denied by a rule for one topic is denied as a whole."""
    judge = AccessJudge(rules)
    selectors = selectors_of(principal, ("g",))
    topics = [topic for topic in TOPICS if matches(text, topic)]

    def asked(action: Action, resource: str) -> Verdict:
        return judge.judge(principal, selectors, action, resource)

    each = [asked(Action.DELIVER, topic) for topic in topics]
    if any(verdict.allowed for verdict in each):
        assert asked(Action.SUBSCRIBE, text).allowed
    if asked(Action.DELIVER, text).allowed:
        assert all(verdict.allowed for verdict in each)
        assert asked(Action.SUBSCRIBE, text).allowed
    if any(verdict.rule is not None and not verdict.allowed for verdict in each):
        assert not asked(Action.DELIVER, text).allowed


@given(rule_lists(), principals, plain_filters)
def test_a_subscription_of_which_one_rule_denies_everything_is_refused(rules, principal, text):
    denial = check_rule(
        Rule(
            id="z",
            effect="deny",
            who=("everyone",),
            actions=(Action.SUBSCRIBE,),
            target=Target.TOPIC,
            pattern=text,
        )
    )
    judge = AccessJudge([*rules, denial])
    selectors = selectors_of(principal, ())
    assert not judge.judge(principal, selectors, Action.SUBSCRIBE, text).allowed
