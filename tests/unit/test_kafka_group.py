"""The group's state machine, in virtual time: who is told what, and when."""

from __future__ import annotations

from itertools import count

import pytest

from onelog.base.clock import ManualClock
from onelog.config.kafka import KafkaGroups
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.groups.answers import JoinAnswer, Joining, Leaving, SyncAnswer, Syncing
from onelog.protocols.kafka.groups.group import NEW_MEMBER_TIMEOUT_MS, Group
from onelog.protocols.kafka.groups.states import (
    COMMIT,
    DELETE,
    FOLLOWS,
    HEARTBEAT,
    SYNC,
    State,
)

E = ErrorCode
DELAY_S = 0.5
RANGE = (("range", b"r"),)


class Desk:
    """A group with its clock, and a place where answers are found by ticket."""

    def __init__(self, group: Group | None = None, **settings) -> None:
        self.clock = ManualClock() if group is None else group._clock
        numbers = count(1)
        self.settings = KafkaGroups(**settings)
        self.group = group or Group(
            "g", self.settings, self.clock, new_id=lambda: str(next(numbers))
        )
        self.answers: dict[str, JoinAnswer | SyncAnswer] = {}
        self.kept = []

    def drain(self) -> None:
        for ticket, answer in self.group.outbox:
            assert ticket not in self.answers, f"{ticket} is answered twice"
            self.answers[ticket] = answer
        self.group.outbox.clear()

    def join(self, ticket, member_id="", *, instance=None, protocols=RANGE, **rest):
        asked = {
            "client_id": "c",
            "client_host": "h",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "needs_known_id": False,
            "can_skip_assignment": False,
        }
        self.group.join(
            ticket,
            Joining(
                member_id=member_id, instance_id=instance, protocols=protocols, **(asked | rest)
            ),
        )
        self.drain()
        return self.answers.get(ticket)

    def sync(self, ticket, answer, *, instance=None, generation=None, protocol=None, **given):
        self.group.sync(
            ticket,
            Syncing(
                member_id=answer.member_id,
                instance_id=instance,
                generation=answer.generation if generation is None else generation,
                protocol_type=None,
                protocol=protocol,
                assignments={key.replace("_", "-"): value for key, value in given.items()},
            ),
        )
        self.drain()
        return self.answers.get(ticket)

    def keep(self, error=E.none) -> None:
        """What the group asked to be kept is durable now."""
        rows, self.group.to_keep = self.group.to_keep, []
        for keep in rows:
            if error is E.none:
                self.kept.append(keep.kept)
            self.group.kept(keep, error)
        self.drain()

    def beat(self, answer, *, instance=None, generation=None):
        generation = answer.generation if generation is None else generation
        return self.group.heartbeat(answer.member_id, instance, generation)

    def leave(self, member_id="", instance=None):
        error = self.group.leave(Leaving(member_id=member_id, instance_id=instance))
        self.drain()
        return error

    def after(self, seconds: float) -> None:
        """Let time pass, with every deadline on the way."""
        end = self.clock.monotonic() + seconds
        while True:
            deadline = self.group.wake_at
            if deadline is None or deadline > end:
                break
            self.clock.advance(max(deadline - self.clock.monotonic(), 0))
            self.group.expire()
            self.drain()
        self.clock.advance(end - self.clock.monotonic())

    def stable(self, *names, **rest):
        """A stable group of these members; instance ids when `static`."""
        static = rest.pop("static", False)
        for name in names:
            self.join(f"{name}-j0", instance=name if static else None, client_id=name, **rest)
        self.after(DELAY_S * (len(names) + 1))
        answers = [self.answers[f"{name}-j0"] for name in names]
        for name, answer in zip(names, answers, strict=True):
            given = {
                row.member_id.replace("-", "_"): row.member_id.encode() for row in answer.members
            }
            self.sync(f"{name}-s0", answer, instance=name if static else None, **given)
        self.keep()
        assert self.group.state is State.STABLE
        return answers


def test_every_state_has_a_row_in_every_table():
    for table in (FOLLOWS, HEARTBEAT, SYNC, COMMIT, DELETE):
        assert set(table) == set(State)


def test_the_first_members_of_a_group_are_gathered_into_one_generation():
    desk = Desk()
    desk.join("a", client_id="a")
    desk.after(DELAY_S - 0.1)
    desk.join("b", client_id="b")
    assert not desk.answers
    desk.after(0.2)  # the first delay is over, but a member came in it
    assert not desk.answers
    desk.after(DELAY_S)
    first, second = desk.answers["a"], desk.answers["b"]
    assert first.generation == second.generation == 1
    assert first.leader == second.leader == first.member_id == "a-1"
    assert [row.member_id for row in first.members] == ["a-1", "b-2"]
    assert second.members == ()
    assert desk.group.state is State.COMPLETING


def test_gathering_ends_with_the_rebalance_timeout_however_many_come():
    desk = Desk()
    for number in range(20):
        desk.join(str(number), rebalance_timeout_ms=2000)
        desk.after(0.4)
    assert desk.answers["0"].generation == 1
    assert desk.clock.monotonic() == pytest.approx(8.0)


def test_assignments_are_answered_when_they_are_durable_and_not_before():
    desk = Desk()
    desk.join("a", client_id="a")
    desk.join("b", client_id="b")
    desk.after(2)
    leader, other = desk.answers["a"], desk.answers["b"]
    assert desk.sync("b-s", other) is None
    assert desk.sync("a-s", leader, a_1=b"left", b_2=b"right") is None
    assert desk.group.state is State.COMPLETING
    desk.keep()
    assert desk.group.state is State.STABLE
    assert desk.answers["a-s"].assignment == b"left"
    assert desk.answers["b-s"].assignment == b"right"
    assert desk.answers["b-s"].protocol == "range"
    assert [row.assignment for row in desk.kept[-1].members] == [b"left", b"right"]


def test_a_member_that_the_leader_forgot_has_an_empty_assignment():
    desk = Desk()
    desk.join("a", client_id="a")
    desk.join("b", client_id="b")
    desk.after(2)
    desk.sync("a-s", desk.answers["a"], a_1=b"all", stranger=b"x")
    desk.keep()
    assert desk.sync("b-s", desk.answers["b"]).assignment == b""


def test_assignments_that_cannot_be_kept_are_refused_and_the_group_starts_again():
    desk = Desk()
    desk.join("a", client_id="a")
    desk.after(1)
    desk.sync("s", desk.answers["a"], a_1=b"x")
    desk.keep(E.coordinator_not_available)
    assert desk.answers["s"].error is E.coordinator_not_available
    assert desk.group.state is State.PREPARING


def test_a_second_sync_of_the_leader_changes_nothing_that_is_on_its_way_to_the_disk():
    desk = Desk()
    desk.join("a", client_id="a")
    desk.after(1)
    desk.sync("s", desk.answers["a"], a_1=b"x")
    desk.sync("again", desk.answers["a"], a_1=b"y")
    assert desk.answers["s"].error is E.rebalance_in_progress
    assert len(desk.group.to_keep) == 1
    desk.keep()
    assert desk.answers["again"].assignment == b"x"


def test_a_new_member_is_given_an_id_first_where_its_version_knows_that():
    desk = Desk()
    answer = desk.join("first", needs_known_id=True, client_id="a")
    assert answer.error is E.member_id_required
    assert answer.member_id == "a-1"
    assert desk.group.state is State.EMPTY
    assert desk.join("second", "a-1", needs_known_id=True) is None
    desk.after(DELAY_S)
    assert desk.answers["second"].member_id == "a-1"


def test_an_id_that_was_given_out_and_not_used_lapses_with_the_session_timeout():
    desk = Desk()
    desk.join("first", needs_known_id=True, client_id="a")
    desk.after(10)
    assert desk.join("late", "a-1").error is E.unknown_member_id


def test_a_rebalance_waits_for_a_member_that_was_given_an_id():
    desk = Desk()
    (first,) = desk.stable("a")
    desk.join("n", needs_known_id=True, client_id="n")
    invited = desk.answers["n"].member_id
    desk.join("a-j1", first.member_id)  # the leader asks for a rebalance
    assert "a-j1" not in desk.answers
    desk.join("n-j1", invited, client_id="n")
    assert desk.answers["a-j1"].generation == desk.answers["n-j1"].generation == 2


def test_a_rebalance_goes_on_when_the_invited_member_leaves():
    desk = Desk()
    (first,) = desk.stable("a")
    desk.join("n", needs_known_id=True, client_id="n")
    desk.join("a-j1", first.member_id)
    assert desk.leave(desk.answers["n"].member_id) is E.none
    assert desk.answers["a-j1"].generation == 2


def test_a_join_with_an_unknown_id_is_refused():
    assert Desk().join("x", "nobody").error is E.unknown_member_id


def test_members_must_share_a_protocol_and_its_type():
    desk = Desk()
    desk.stable("a")
    refused = {
        "type": desk.join("type", protocol_type="connect"),
        "none": desk.join("none", protocols=()),
        "other": desk.join("other", protocols=(("sticky", b""),)),
        "no type": desk.join("no type", protocol_type=""),
    }
    assert {row.error for row in refused.values()} == {E.inconsistent_group_protocol}
    assert desk.group.state is State.STABLE


def test_any_protocol_type_may_form_a_group_and_an_empty_one_may_change_it():
    desk = Desk()
    (first,) = desk.stable("w", protocol_type="connect", protocols=(("sessioned", b"m"),))
    assert first.protocol_type == "connect"
    desk.leave(first.member_id)
    assert desk.group.state is State.EMPTY
    desk.join("s", protocol_type="sr", protocols=(("v0", b""),))
    desk.after(1)
    assert desk.answers["s"].protocol_type == "sr"


def test_the_protocol_that_most_prefer_among_those_that_all_know_is_elected():
    desk = Desk()
    for name, order in {
        "a": ["new", "sticky", "range"],
        "b": ["range", "sticky"],
        "c": ["sticky", "range"],
    }.items():
        desk.join(name, client_id=name, protocols=tuple((row, row.encode()) for row in order))
    desk.after(3)
    assert desk.answers["a"].protocol == "sticky"
    assert [row.metadata for row in desk.answers["a"].members] == [b"sticky"] * 3


def test_a_member_that_joins_makes_the_others_join_again():
    desk = Desk()
    (first,) = desk.stable("a")
    desk.join("b", client_id="b")
    assert desk.group.state is State.PREPARING
    assert desk.beat(first) is E.rebalance_in_progress
    desk.join("a-j1", first.member_id)
    assert desk.answers["a-j1"].generation == desk.answers["b"].generation == 2
    assert desk.beat(first) is E.illegal_generation
    assert desk.beat(desk.answers["a-j1"]) is E.none


def test_a_follower_that_joins_a_stable_group_unchanged_keeps_its_place():
    desk = Desk()
    first, second = desk.stable("a", "b")
    answer = desk.join("again", second.member_id, client_id="b")
    assert answer.generation == 1
    assert answer.leader == first.member_id
    assert desk.group.state is State.STABLE


def test_a_leader_that_joins_a_stable_group_wants_a_new_generation():
    desk = Desk()
    first, _second = desk.stable("a", "b")
    assert desk.join("again", first.member_id, client_id="a") is None
    assert desk.group.state is State.PREPARING


def test_a_member_with_other_metadata_starts_a_rebalance():
    desk = Desk()
    _first, second = desk.stable("a", "b")
    assert desk.join("again", second.member_id, protocols=(("range", b"other"),)) is None
    assert desk.group.state is State.PREPARING


def test_a_member_that_missed_its_join_answer_is_told_again():
    desk = Desk()
    desk.join("a", client_id="a")
    desk.after(1)
    again = desk.join("again", "a-1", client_id="a")
    assert again == desk.answers["a"]
    assert desk.group.state is State.COMPLETING


def test_a_join_while_others_wait_for_assignments_sends_them_back():
    desk = Desk()
    desk.join("a", client_id="a")
    desk.join("b", client_id="b")
    desk.after(2)
    desk.sync("b-s", desk.answers["b"])
    desk.sync("a-s", desk.answers["a"], a_1=b"x", b_2=b"y")  # on its way to the disk
    desk.join("c", client_id="c")
    assert desk.answers["b-s"].error is desk.answers["a-s"].error is E.rebalance_in_progress
    desk.keep()  # what was durable too late is of no use
    assert desk.group.state is State.PREPARING
    desk.join("a2", "a-1")
    desk.join("b2", "b-2")
    assert {desk.answers[t].generation for t in ("a2", "b2", "c")} == {2}


def test_a_retry_of_a_waiting_join_takes_the_place_of_the_first():
    desk = Desk()
    first, second = desk.stable("a", "b")
    desk.join("a1", first.member_id)
    desk.join("a2", first.member_id)
    assert desk.answers["a1"].error is E.rebalance_in_progress
    desk.join("b1", second.member_id)
    assert desk.answers["a2"].generation == 2


def test_a_heartbeat_needs_the_member_its_generation_and_its_instance():
    desk = Desk()
    (first,) = desk.stable("a", static=True)
    assert desk.beat(first, instance="a") is E.none
    assert desk.beat(first) is E.none
    assert desk.beat(first, generation=0) is E.illegal_generation
    assert desk.group.heartbeat("nobody", None, 1) is E.unknown_member_id
    assert desk.group.heartbeat("nobody", "a", 1) is E.fenced_instance_id
    assert desk.group.heartbeat(first.member_id, "b", 1) is E.unknown_member_id


def test_a_member_without_heartbeats_is_out_after_its_session_timeout():
    desk = Desk()
    first, second = desk.stable("a", "b")
    for _ in range(3):
        desk.after(4)
        desk.beat(first)
    assert desk.beat(second) is E.unknown_member_id
    assert desk.group.state is State.PREPARING
    desk.join("a1", first.member_id)
    assert [row.member_id for row in desk.answers["a1"].members] == [first.member_id]


def test_a_group_whose_members_all_vanish_is_empty_and_kept_so():
    desk = Desk()
    desk.stable("a", "b")
    desk.after(30)
    assert desk.group.state is State.EMPTY
    desk.keep()
    assert desk.kept[-1].generation == 2
    assert desk.kept[-1].members == ()
    assert desk.group.wake_at is None


def test_a_member_that_waits_for_an_answer_is_alive():
    desk = Desk()
    first, second = desk.stable("a", "b")
    desk.join("a1", first.member_id)
    for _ in range(10):  # longer than a's session; b only sends heartbeats
        desk.after(4)
        desk.beat(second)
    assert first.member_id in desk.group.members
    assert "a1" not in desk.answers
    desk.after(60)
    assert desk.answers["a1"].generation == 2


def test_who_does_not_join_again_in_time_is_out():
    desk = Desk()
    first, second = desk.stable("a", "b")
    desk.join("b1", second.member_id, protocols=(("range", b"new"),))
    for _ in range(15):
        desk.after(4)
        desk.beat(first)
    assert desk.answers["b1"].leader == second.member_id
    assert desk.beat(first) is E.unknown_member_id


def test_who_does_not_ask_for_its_assignment_in_time_is_out():
    desk = Desk()
    desk.join("a", client_id="a")
    desk.join("b", client_id="b")
    desk.after(2)
    leader, lazy = desk.answers["a"], desk.answers["b"]
    desk.sync("a-s", leader, a_1=b"x")
    desk.keep()
    for _ in range(15):
        desk.after(4)
        desk.beat(leader)
        desk.beat(lazy)
    assert desk.group.state is State.PREPARING
    assert lazy.member_id not in desk.group.members
    assert leader.member_id in desk.group.members


def test_a_leader_that_never_brings_assignments_is_replaced():
    desk = Desk()
    desk.join("a", client_id="a")
    desk.join("b", client_id="b")
    desk.after(2)
    desk.sync("b-s", desk.answers["b"])
    desk.after(11)  # the leader's session ends
    assert desk.answers["b-s"].error is E.rebalance_in_progress
    desk.join("b1", "b-2")
    assert desk.answers["b1"].leader == "b-2"


def test_a_leader_that_leaves_is_replaced():
    desk = Desk()
    first, second = desk.stable("a", "b")
    assert desk.leave(first.member_id) is E.none
    desk.join("b1", second.member_id)
    assert desk.answers["b1"].leader == second.member_id


def test_a_member_that_leaves_while_it_waits_is_answered():
    desk = Desk()
    desk.join("a", client_id="a")
    desk.leave("a-1")
    assert desk.answers["a"].error is E.unknown_member_id
    desk.after(1)
    assert desk.group.state is State.EMPTY


def test_leaving_needs_a_member():
    desk = Desk()
    (first,) = desk.stable("a", static=True)
    assert desk.leave("nobody") is E.unknown_member_id
    assert desk.leave(instance="b") is E.unknown_member_id
    assert desk.leave("old", instance="a") is E.fenced_instance_id
    assert desk.leave(instance="a") is E.none
    assert first.member_id not in desk.group.members


def test_a_new_members_join_does_not_wait_for_ever():
    desk = Desk()
    (first,) = desk.stable("a", session_timeout_ms=1_800_000, rebalance_timeout_ms=1_800_000)
    desk.join("n")
    desk.after(NEW_MEMBER_TIMEOUT_MS / 1000)
    assert desk.answers["n"].error is E.unknown_member_id
    assert desk.group.state is State.PREPARING
    assert first.member_id in desk.group.members


# -- static members


def test_a_static_member_that_comes_back_has_its_assignment_without_a_rebalance():
    desk = Desk()
    _first, second = desk.stable("a", "b", static=True)
    assert desk.join("b1", instance="b", client_id="b") is None  # not before it is durable
    desk.keep()
    back = desk.answers["b1"]
    assert back.generation == 1
    assert back.member_id != second.member_id
    assert desk.group.state is State.STABLE
    assert desk.sync("b-s1", back, instance="b").assignment == second.member_id.encode()
    assert desk.beat(second, instance="b") is E.fenced_instance_id
    assert desk.kept[-1].members[-1].member_id == back.member_id


def test_a_static_leader_that_comes_back_is_told_to_skip_its_assignment():
    desk = Desk()
    first, _second = desk.stable("a", "b", static=True)
    desk.join("a1", instance="a", can_skip_assignment=True)
    desk.keep()
    back = desk.answers["a1"]
    assert back.skip_assignment
    assert back.leader == back.member_id != first.member_id
    assert len(back.members) == 2


def test_a_static_leader_of_an_old_version_is_told_that_another_leads():
    desk = Desk()
    first, _second = desk.stable("a", "b", static=True)
    desk.join("a1", instance="a")
    desk.keep()
    back = desk.answers["a1"]
    assert back.leader == first.member_id != back.member_id
    assert not back.members
    assert not back.skip_assignment


def test_a_static_follower_that_comes_back_is_told_who_leads_and_assigns_nothing():
    desk = Desk()
    first, _second = desk.stable("a", "b", static=True)
    desk.join("b1", instance="b", can_skip_assignment=True)
    desk.keep()
    assert desk.answers["b1"].leader == first.member_id
    assert not desk.answers["b1"].skip_assignment
    assert not desk.answers["b1"].members


def test_a_static_member_that_would_change_the_protocol_starts_a_rebalance():
    desk = Desk()
    both = (("range", b""), ("sticky", b""))
    desk.stable("a", static=True, protocols=both)
    desk.join("a1", instance="a", protocols=both[::-1])
    assert desk.group.state is State.COMPLETING
    assert desk.answers["a1"].protocol == "sticky"


def test_a_static_member_that_comes_back_during_the_sync_starts_a_rebalance():
    desk = Desk()
    desk.join("a", instance="a")
    desk.join("b", instance="b")
    desk.after(2)
    desk.sync("b-s", desk.answers["b"], instance="b")
    desk.join("b1", instance="b")
    assert desk.answers["b-s"].error is E.fenced_instance_id
    assert desk.group.state is State.PREPARING


def test_a_static_member_that_comes_back_and_never_syncs_is_out_in_time():
    desk = Desk()
    desk.join("a", instance="a", client_id="a")
    desk.join("b", instance="b", client_id="b")
    desk.after(2)
    desk.sync("a-s", desk.answers["a"], instance="a")
    desk.keep()
    desk.join("b1", instance="b", client_id="b")
    desk.keep()
    for _ in range(15):
        desk.after(4)
        desk.beat(desk.answers["a"], instance="a")
        desk.beat(desk.answers["b1"], instance="b")
    assert desk.group.state is State.PREPARING
    assert "b" not in desk.group.members.by_instance
    assert "a" in desk.group.members.by_instance


def test_a_static_join_that_waits_is_fenced_by_the_next_one():
    desk = Desk()
    desk.join("a", instance="a")
    desk.join("a1", instance="a")
    assert desk.answers["a"].error is E.fenced_instance_id
    desk.after(1)
    assert desk.answers["a1"].generation == 1
    assert len(desk.group.members) == 1


def test_a_static_member_whose_new_id_cannot_be_kept_is_told_so():
    desk = Desk()
    desk.stable("a", static=True)
    desk.join("a1", instance="a")
    desk.keep(E.coordinator_not_available)
    assert desk.answers["a1"].error is E.coordinator_not_available
    desk.join("a2", instance="a")
    desk.keep()
    assert desk.answers["a2"].error is E.none


def test_a_static_member_that_comes_back_as_a_rebalance_begins_is_answered_by_it():
    desk = Desk()
    first, _second = desk.stable("a", "b", static=True)
    desk.join("b1", instance="b")
    desk.join("c", client_id="c")
    desk.keep()
    assert "b1" not in desk.answers
    desk.join("a1", first.member_id, instance="a")
    assert {desk.answers[t].generation for t in ("a1", "b1", "c")} == {2}


def test_a_static_member_that_is_away_keeps_its_place_in_a_rebalance():
    desk = Desk()
    first, second = desk.stable("a", "b", static=True, rebalance_timeout_ms=5_000)
    desk.join("a1", first.member_id, instance="a", rebalance_timeout_ms=5_000)
    desk.after(5)
    assert desk.answers["a1"].generation == 2
    assert second.member_id in desk.group.members
    desk.after(11)
    assert second.member_id not in desk.group.members


def test_a_group_of_static_members_that_are_all_away_waits_for_their_sessions():
    desk = Desk()
    desk.stable("a", "b", static=True)
    for member in desk.group.members:
        member.rebalance_timeout_ms = 0
    desk.leave(instance="a")
    looks = 0
    while desk.clock.monotonic() < 8:
        desk.clock.advance(max(desk.group.wake_at - desk.clock.monotonic(), 0))
        desk.group.expire()
        looks += 1
    assert looks < 10  # no busy loop, whatever the timeout
    assert desk.group.state is State.PREPARING
    desk.after(4)
    assert desk.group.state is State.EMPTY


# -- limits


def test_a_full_group_takes_nobody_else():
    desk = Desk(members=2)
    first, _second = desk.stable("a", "b")
    assert desk.join("c", client_id="c").error is E.group_max_size_reached
    assert desk.group.state is State.STABLE
    desk.join("a1", first.member_id, client_id="a")
    assert desk.group.state is State.PREPARING


def test_ids_that_were_given_out_are_bounded():
    desk = Desk(members=2)
    errors = [desk.join(str(n), needs_known_id=True).error for n in range(3)]
    assert errors == [E.member_id_required, E.member_id_required, E.group_max_size_reached]


def test_the_bytes_of_a_group_are_bounded():
    desk = Desk(group_bytes=4096)
    desk.stable("a")
    large = (("range", b"x" * 4096),)
    assert desk.join("b", protocols=large).error is E.group_max_size_reached
    desk.join("c", client_id="c")
    assert desk.group.members.size_bytes < 4096


def test_assignments_beyond_the_bytes_of_a_group_are_refused():
    desk = Desk(group_bytes=4096)
    desk.join("a", client_id="a")
    desk.after(1)
    assert desk.sync("s", desk.answers["a"], a_1=b"x" * 4096).error is E.invalid_request
    assert not desk.group.to_keep


def test_the_bytes_of_a_group_are_counted_back_to_nothing():
    desk = Desk()
    first, second = desk.stable("a", "b")
    desk.join("b1", second.member_id, client_id="longer", protocols=(("range", b"x" * 100),))
    desk.join("a1", first.member_id, client_id="a")
    desk.leave(first.member_id)
    desk.leave(second.member_id)
    assert desk.group.members.size_bytes == 0
    assert desk.group.members.common() == set()


# -- commits


def test_only_members_commit_while_there_are_any():
    desk = Desk()
    assert desk.group.check_commit("", None, -1) is E.none
    assert desk.group.check_commit("x", None, 3) is E.unknown_member_id
    (first,) = desk.stable("a")
    check = desk.group.check_commit
    assert check("", None, -1) is E.unknown_member_id
    assert check("", None, -1, is_transactional=True) is E.none
    assert check(first.member_id, None, 1) is E.none
    assert check(first.member_id, None, 0) is E.illegal_generation
    assert check(first.member_id, None, 0, is_transactional=True) is E.illegal_generation
    assert check(first.member_id, "a", 1) is E.unknown_member_id


def test_the_old_generation_may_commit_until_the_new_one_has_begun():
    desk = Desk()
    (first,) = desk.stable("a")
    desk.join("b", client_id="b")
    assert desk.group.check_commit(first.member_id, None, 1) is E.none
    desk.join("a1", first.member_id)
    assert desk.group.check_commit(first.member_id, None, 1) is E.illegal_generation
    assert desk.group.check_commit(first.member_id, None, 2) is E.rebalance_in_progress
    check = desk.group.check_commit
    assert check(first.member_id, None, 2, is_transactional=True) is E.none


def test_a_commit_is_a_sign_of_life():
    desk = Desk()
    (first,) = desk.stable("a")
    for _ in range(4):
        desk.after(9)
        assert desk.group.check_commit(first.member_id, None, 1) is E.none


# -- after a restart


def test_members_of_a_recovered_group_go_on_without_a_rebalance():
    before = Desk()
    first, second = before.stable("a", "b", static=True)
    group = Group.recovered("g", before.kept[-1], before.settings, ManualClock())
    desk = Desk(group)
    assert desk.group.state is State.STABLE
    assert desk.beat(first, instance="a") is E.none
    assert desk.sync("b-s", second, instance="b").assignment == second.member_id.encode()
    assert desk.group.members.leader == first.member_id
    assert desk.group.check_commit(second.member_id, "b", 1) is E.none
    desk.after(11)
    assert desk.group.state is State.EMPTY


def test_a_recovered_empty_group_goes_on_counting_generations():
    before = Desk()
    (first,) = before.stable("a")
    before.leave(first.member_id)
    before.keep()
    desk = Desk(Group.recovered("g", before.kept[-1], before.settings, ManualClock()))
    assert desk.group.state is State.EMPTY
    desk.join("n")
    desk.after(1)
    assert desk.answers["n"].generation == 3


def test_a_dead_group_takes_nothing():
    desk = Desk()
    desk.group.die()
    assert desk.join("a").error is E.coordinator_not_available
    assert desk.group.heartbeat("a", None, 1) is E.coordinator_not_available
    assert desk.leave("a") is E.coordinator_not_available
    assert desk.group.check_commit("", None, -1) is E.coordinator_not_available
    assert desk.group.check_commit("", None, -1, is_transactional=True) is (
        E.coordinator_not_available
    )
