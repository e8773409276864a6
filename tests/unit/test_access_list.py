"""The access list: rules in the store, answers that change with them, and who is never asked."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import AlreadyExists, InvalidName, InvalidRequest, LimitExceeded, NotFound
from onelog.broker import LOCAL, Action, Kind, Principal
from onelog.metadata.local import LocalStore
from onelog.observe import Troubles
from onelog.security.access import judging, listing
from onelog.security.access.listing import AccessList
from tests.support.access import rule
from tests.support.brokers import running

ANN, BOB = Principal("ann", "mqtt"), Principal("bob", "mqtt")


@pytest.fixture
async def place(tmp_path):
    clock = ManualClock()
    store = await LocalStore.open(tmp_path / "metadata.db", clock)
    troubles = Troubles(clock)
    access = AccessList(store, clock, troubles)
    await access.open()
    yield access, store, troubles
    await access.close()
    await store.close()


async def test_without_a_rule_all_is_open_and_with_one_all_else_is_closed(place):
    access, _, _ = place
    assert access.allows(ANN, Action.PUBLISH, "a")
    assert not access.checks_delivery
    await access.add(rule("allow user:ann publish topic:a"))
    assert access.allows(ANN, Action.PUBLISH, "a")
    assert access.checks_delivery
    assert not access.allows(ANN, Action.DELIVER, "a")
    assert not access.allows(BOB, Action.PUBLISH, "a")
    await access.remove("1")
    assert access.allows(BOB, Action.PUBLISH, "a")


async def test_a_rule_that_denies_wins_over_all_that_allow(place):
    access, _, _ = place
    await access.add(rule("allow user:ann all topic:#"))
    await access.add(rule("deny everyone publish prefix:secret"))
    await access.add(rule("allow user:ann publish topic:secret/a"))
    assert not access.allows(ANN, Action.PUBLISH, "secret/a")
    assert not access.allows(ANN, Action.PUBLISH, "secrets")
    assert access.allows(ANN, Action.DELIVER, "secret/a")
    found = access.explain(ANN, Action.PUBLISH, "secret/a")
    assert (found.allowed, found.rule and found.rule.id) == (False, "2")


async def test_the_broker_itself_is_never_asked(place):
    access, _, _ = place
    await access.add(rule("deny everyone all topic:#"))
    assert access.allows(LOCAL, Action.PUBLISH, "a")


async def test_a_peer_without_a_name_is_nobody_but_an_anonymous_one_is_everyone(place):
    access, _, _ = place
    await access.add(rule("allow everyone publish topic:a"))
    await access.add(rule("allow anonymous publish topic:b"))
    anonymous = Principal("anonymous", "mqtt")
    assert access.allows(anonymous, Action.PUBLISH, "a")
    assert access.allows(anonymous, Action.PUBLISH, "b")
    assert not access.allows(ANN, Action.PUBLISH, "b")
    assert not access.allows(Principal("", "none"), Action.PUBLISH, "a")


async def test_groups_certificates_and_claims_select_as_names_do(place):
    access, _, _ = place
    access.groups_of = lambda name: ("ops",) if name == "ann" else ()
    await access.add(rule("allow group:ops publish topic:g"))
    await access.add(rule("allow certificate:bob publish topic:c"))
    await access.add(rule("allow claim:role=writer publish topic:t"))
    assert access.allows(ANN, Action.PUBLISH, "g")
    assert not access.allows(BOB, Action.PUBLISH, "g")
    assert not access.allows(BOB, Action.PUBLISH, "c")
    assert access.allows(Principal("bob", "mqtt", certificate=True), Action.PUBLISH, "c")
    assert access.allows(Principal("x", "kafka", claims=("role=writer",)), Action.PUBLISH, "t")


async def test_the_user_and_client_in_a_pattern_are_plain_text(place):
    access, _, _ = place
    assert not access.tells_clients_apart
    await access.add(rule("allow everyone publish topic:home/%u/#"))
    await access.add(rule("allow everyone subscribe topic:to-%c/+"))
    assert access.tells_clients_apart
    assert access.allows(ANN, Action.PUBLISH, "home/ann/x")
    assert not access.allows(BOB, Action.PUBLISH, "home/ann/x")
    for name in ("+", "#", "a/b", "%u"):
        assert not access.allows(Principal(name, "mqtt"), Action.PUBLISH, "home/ann/x")
        assert not access.allows(Principal(name, "mqtt", "+"), Action.DELIVER, "to-+/x")
    one = Principal("ann", "mqtt", "one")
    assert access.allows(one, Action.DELIVER, "to-one/x")
    assert not access.allows(ANN, Action.DELIVER, "to-/x")  # a client without an id


async def test_rules_on_cursors_are_patterns_of_names(place):
    access, _, _ = place
    await access.add(rule("allow everyone consume cursor:group/%u-*"))
    assert access.allows(ANN, Action.CONSUME, "group/ann-1", Kind.CURSOR)
    assert not access.allows(ANN, Action.CONSUME, "group/bob-1", Kind.CURSOR)
    assert not access.allows(ANN, Action.CONSUME, "queue/ann-1", Kind.CURSOR)
    assert not access.allows(ANN, Action.DELETE, "group/ann-1", Kind.CURSOR)


async def test_who_remembers_answers_is_told_when_rules_or_users_change(place):
    access, _, _ = place
    told: list[bool] = []
    access.on_change.append(lambda: told.append(access.allows(ANN, Action.PUBLISH, "a")))
    await access.add(rule("allow user:bob publish topic:a"))
    await access.add(rule("allow user:ann publish topic:a"))
    await access.remove("2")
    access.groups_of = lambda _name: ("ops",)
    access.forget()
    assert told == [False, True, False, False]


async def test_rules_outlive_a_restart_and_apply_from_the_first_question_on(tmp_path):
    async with running(tmp_path) as broker:
        await broker.access.add(rule("allow user:ann publish topic:a"))
    async with running(tmp_path) as broker:
        assert broker.authorizer is broker.access
        assert [row.text for row in broker.access.rules] == ["allow user:ann publish topic:a"]
        assert not broker.access.allows(BOB, Action.PUBLISH, "a")


async def test_a_change_of_several_rules_is_made_as_a_whole(place):
    access, _, _ = place
    await access.add(rule("allow user:ann publish topic:a", "first"))
    with pytest.raises(NotFound, match="there is no rule 'second'"):
        await access.change([rule("allow user:ann publish topic:b")], ["first", "second"])
    with pytest.raises(AlreadyExists):
        await access.add(rule("allow user:ann publish topic:b", "first"))
    assert [row.id for row in access.rules] == ["first"]
    kept = await access.change([rule("allow user:ann publish topic:b")], ["first"])
    assert [row.id for row in kept] == [row.id for row in access.rules] == ["1"]


async def test_who_only_takes_rights_away_does_not_open_everything(place):
    access, _, _ = place
    await access.add(rule("allow user:ann publish topic:a"))
    with pytest.raises(InvalidRequest, match="the last access rules"):
        await access.change(remove=["1"], may_open=False)
    assert not access.allows(BOB, Action.PUBLISH, "a")
    await access.change([rule("allow user:ann publish topic:b")], ["1"], may_open=False)
    await access.remove("2")
    assert access.allows(BOB, Action.PUBLISH, "a")


async def test_rules_that_are_made_at_the_same_time_get_numbers_of_their_own(place):
    access, _, _ = place
    made = await asyncio.gather(
        *(access.add(rule(f"allow user:ann publish topic:t{n}")) for n in range(5))
    )
    assert sorted(row.id for row in made) == ["1", "2", "3", "4", "5"]


async def test_a_rule_that_cannot_be_read_closes_everything_until_it_is_removed(place):
    access, store, troubles = place
    await access.add(rule("allow everyone all topic:#"))
    await store.put(listing.PREFIX + "odd", b'{"id": "odd", "effect": "perhaps"}')
    async with asyncio.timeout(5):
        while not access.unreadable:  # noqa: ASYNC110 - the watch tells nobody else of this row
            await asyncio.sleep(0)
    assert not access.allows(ANN, Action.PUBLISH, "a")
    assert access.allows(LOCAL, Action.PUBLISH, "a")
    assert "onelog acl remove odd" in troubles.standing()[0].error
    await access.remove("odd")
    assert access.allows(ANN, Action.PUBLISH, "a")
    assert not troubles.standing()


async def test_answers_that_are_remembered_are_bounded(place, monkeypatch):
    monkeypatch.setattr(listing, "ANSWERS_MAX", 50)
    access, _, _ = place
    await access.add(rule("allow everyone publish topic:a/#"))
    for number in range(200):
        assert access.allows(Principal(f"u{number % 7}"), Action.PUBLISH, f"a/{number}")
    assert len(access._known) <= 50


async def test_many_answers_are_forgotten_at_once_and_freed_in_pieces(place, monkeypatch):
    monkeypatch.setattr(listing, "DROPPED_AT_ONCE", 20)
    access, _, _ = place
    await access.add(rule("allow everyone publish topic:a/#"))
    for number in range(100):
        assert access.allows(Principal(f"u{number % 3}"), Action.PUBLISH, f"a/{number}")
    access.forget()
    assert not access._known
    sizes = []
    while access._stale:
        sizes.append(sum(map(len, access._stale)))
        await asyncio.sleep(0)
    assert sizes[0] == 100
    assert all(before - after <= 20 for before, after in itertools.pairwise([*sizes, 0]))


async def test_a_change_takes_in_only_what_changed(place, monkeypatch):
    access, _, _ = place
    await access.change([rule(f"allow user:u{n} publish topic:t/{n}") for n in range(100)])
    made = []
    known = judging._Entry

    def counted(found):
        made.append(found.id)
        return known(found)

    monkeypatch.setattr(judging, "_Entry", counted)
    await access.add(rule("allow user:ann publish topic:a"))
    await access.remove("50")
    assert made == ["101"]
    assert len(access.rules) == 100
    assert access.allows(ANN, Action.PUBLISH, "a")


async def test_many_rules_are_written_in_parts_and_the_list_is_never_empty_in_between(place):
    access, _, _ = place
    old = await access.change([rule(f"allow user:ann publish topic:t/{n}") for n in range(300)])
    seen = []

    def look() -> None:
        seen.append((access.checks_delivery, access.allows(ANN, Action.PUBLISH, "t/1")))

    access.on_change.append(look)
    new = [rule(f"allow user:bob publish topic:t/{n}") for n in range(300)]
    kept = await access.change(new, [row.id for row in old])
    assert [row.id for row in access.rules] == [row.id for row in kept]
    assert len(kept) == 300
    assert len(seen) > 4
    assert all(has_rules for has_rules, _may in seen)
    assert access.allows(BOB, Action.PUBLISH, "t/299")
    assert not access.allows(ANN, Action.PUBLISH, "t/1")


async def test_there_are_not_more_rules_than_the_limit(place, monkeypatch):
    monkeypatch.setattr(listing, "ACCESS_RULES_MAX", 2)
    access, _, _ = place
    for topic in "ab":
        await access.add(rule(f"allow everyone publish topic:{topic}"))
    with pytest.raises(LimitExceeded, match="2 access rules at most"):
        await access.add(rule("allow everyone publish topic:c"))
    await access.change([rule("allow everyone publish topic:c")], ["1"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("permit everyone publish topic:a", "allow or deny"),
        ("allow ann publish topic:a", "user:NAME"),
        ("allow role:x publish topic:a", "user:NAME"),
        ("allow user:anonymous publish topic:a", "write anonymous"),
        ("allow user:local publish topic:a", "needs no rule"),
        ("allow claim:role publish topic:a", "NAME=VALUE"),
        ("allow everyone read topic:a", "no action on a topic"),
        ("allow everyone consume topic:a", "no action on a topic"),
        ("allow everyone publish cursor:a", "no action on a cursor"),
        ("allow everyone publish a/b", "topic:FILTER"),
        ("allow everyone publish topic:a/#/b", "whole last level"),
        ("allow everyone publish topic:a+/b", "whole level"),
        ("allow everyone publish prefix:a/+", "plain text"),
    ],
)
def test_a_rule_that_says_nothing_clear_is_refused_with_what_to_write(text, says):
    with pytest.raises((InvalidName, InvalidRequest), match=says):
        rule(text)
