"""Every version of every request of groups, byte by byte, against `onelog serve`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.conformance.kafka_brokers import KafkaOnelog, unique
from tests.conformance.mqtt_brokers import GROUPS_AT_ONCE
from tests.support.kafka_wire import Wire

K = ApiKey
E = ErrorCode
SESSION_MS = 6_000


def versions(key: ApiKey) -> range:
    return range(APIS[key].first, APIS[key].last + 1)


@pytest.fixture(scope="module")
def topic(kafka_onelog) -> str:
    name = unique("wire")
    with Wire(kafka_onelog.port) as wire:
        for _ in range(50):
            answer = wire.ask(
                K.METADATA, 4, topics=[{"name": name}], allow_auto_topic_creation=True
            )
            if answer.topics[0].error_code is E.none:
                return name
            time.sleep(0.1)
    raise AssertionError("the topic was not made")


@pytest.fixture
def wire(kafka_onelog) -> Iterator[Wire]:
    with Wire(kafka_onelog.port) as opened:
        yield opened


@pytest.fixture
def dial(kafka_onelog) -> Iterator[Callable[[], Wire]]:
    opened: list[Wire] = []

    def _dial() -> Wire:
        opened.append(Wire(kafka_onelog.port))
        return opened[-1]

    yield _dial
    for wire in opened:
        wire.close()


def joining(group: str, member_id: str = "", **rest: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": SESSION_MS,
        "rebalance_timeout": 10_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"meta"}],
        "reason": "a test",
    } | rest


def join(wire: Wire, group: str, version: int = 9, **rest: Any) -> Any:
    answer = wire.ask(K.JOIN_GROUP, version, **joining(group, **rest))
    if answer.error_code is E.member_id_required:
        assert version >= 4
        rest["member_id"] = answer.member_id
        answer = wire.ask(K.JOIN_GROUP, version, **joining(group, **rest))
    return answer


def syncing(group: str, joined: Any, **rest: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [
            {"member_id": row.member_id, "assignment": row.member_id.encode()}
            for row in joined.members
        ],
    } | rest


def stable(wire: Wire, group: str, **rest: Any) -> Any:
    joined = join(wire, group, **rest)
    instance = {"group_instance_id": rest["group_instance_id"]} if rest else {}
    answer = wire.ask(K.SYNC_GROUP, 5, **syncing(group, joined, **instance))
    assert answer.error_code is E.none
    return joined


def committing(group: str, topic: str, offset: int, **rest: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": 0,
                        "committed_offset": offset,
                        "committed_leader_epoch": 3,
                        "committed_metadata": "nöte",
                    }
                ],
            }
        ],
    } | rest


def commit(wire: Wire, group: str, topic: str, offset: int, version: int = 9, **rest: Any) -> Any:
    answer = wire.ask(K.OFFSET_COMMIT, version, **committing(group, topic, offset, **rest))
    return answer.topics[0].partitions[0].error_code


@pytest.mark.parametrize("version", versions(K.JOIN_GROUP))
def test_a_member_joins_at_every_version(wire, version):
    group = unique("g")
    answer = join(wire, group, version)
    assert answer.error_code is E.none
    assert answer.generation_id == 1
    assert answer.leader == answer.member_id
    assert answer.protocol_name == "range"
    assert [(row.member_id, row.metadata) for row in answer.members] == [
        (answer.member_id, b"meta")
    ]


@pytest.mark.parametrize("version", versions(K.JOIN_GROUP))
def test_a_join_is_refused_at_every_version(wire, version):
    for code, rest in {
        E.invalid_session_timeout: {"session_timeout": 1},
        E.invalid_group_id: {"group_id": ""},
        E.unknown_member_id: {"member_id": "nobody"},
        E.inconsistent_group_protocol: {"protocols": []},
    }.items():
        answer = wire.ask(K.JOIN_GROUP, version, **(joining(unique("g")) | rest))
        assert answer.error_code is code
        assert not answer.members


@pytest.mark.parametrize("version", versions(K.SYNC_GROUP))
def test_a_member_syncs_at_every_version(wire, version):
    group = unique("g")
    joined = join(wire, group)
    stale = wire.ask(K.SYNC_GROUP, version, **syncing(group, joined, generation_id=7))
    assert stale.error_code is E.illegal_generation
    answer = wire.ask(K.SYNC_GROUP, version, **syncing(group, joined))
    assert answer.error_code is E.none
    assert answer.assignment == joined.member_id.encode()


@pytest.mark.parametrize("version", versions(K.SYNC_GROUP)[5:])
def test_a_sync_for_another_protocol_is_refused(wire, version):
    group = unique("g")
    joined = join(wire, group)
    answer = wire.ask(K.SYNC_GROUP, version, **syncing(group, joined, protocol_name="other"))
    assert answer.error_code is E.inconsistent_group_protocol


@pytest.mark.parametrize("version", versions(K.HEARTBEAT))
def test_a_member_beats_at_every_version(wire, version):
    group = unique("g")
    joined = stable(wire, group)
    beat = {"group_id": group, "generation_id": 1, "member_id": joined.member_id}
    for rest, code in (
        ({}, E.none),
        ({"generation_id": 2}, E.illegal_generation),
        ({"member_id": "nobody"}, E.unknown_member_id),
        ({"group_id": "unknown"}, E.unknown_member_id),
        ({"group_id": ""}, E.invalid_group_id),
    ):
        assert wire.ask(K.HEARTBEAT, version, **(beat | rest)).error_code is code


@pytest.mark.parametrize("version", versions(K.LEAVE_GROUP))
def test_a_member_leaves_at_every_version(wire, version):
    group = unique("g")
    joined = stable(wire, group)
    leaving = {"group_id": group, "member_id": joined.member_id}
    leaving["members"] = [
        {"member_id": "nobody", "group_instance_id": None, "reason": "why not"},
        {"member_id": joined.member_id, "group_instance_id": None, "reason": None},
    ]
    answer = wire.ask(K.LEAVE_GROUP, version, **leaving)
    assert answer.error_code is E.none
    if version >= 3:
        codes = [(row.member_id, row.error_code) for row in answer.members]
        assert codes == [("nobody", E.unknown_member_id), (joined.member_id, E.none)]
    else:
        again = wire.ask(K.LEAVE_GROUP, version, **leaving)
        assert again.error_code is E.unknown_member_id
    listed = wire.ask(K.DESCRIBE_GROUPS, 5, groups=[group], include_authorized_operations=False)
    assert listed.groups[0].group_state == "Empty"


@pytest.mark.parametrize("version", versions(K.OFFSET_COMMIT))
def test_offsets_are_committed_at_every_version(wire, topic, version):
    group = unique("g")
    assert commit(wire, group, topic, 77, version, retention_time=-1) is E.none
    (row,) = fetched(wire, group, topic)
    assert row.committed_offset == 77
    assert row.metadata == "nöte"
    assert row.committed_leader_epoch == (3 if version >= 6 else -1)


def test_what_cannot_be_committed_is_refused_partition_by_partition(wire, topic):
    group = unique("g")
    rows = [
        {"partition_index": number, "committed_offset": 1, "committed_metadata": text}
        for number, text in ((0, None), (1, "x" * 4097), (1000, ""), (-1, ""), (2, "x" * 4096))
    ]
    answer = wire.ask(
        K.OFFSET_COMMIT,
        9,
        **committing(
            group,
            topic,
            0,
            topics=[
                {"name": topic, "partitions": rows},
                {"name": "no such topic", "partitions": rows[:1]},
            ],
        ),
    )
    codes = [row.error_code for row in answer.topics[0].partitions]
    unknown = E.unknown_topic_or_partition
    assert codes == [E.none, E.offset_metadata_too_large, unknown, unknown, E.none]
    assert answer.topics[1].partitions[0].error_code is E.invalid_topic_exception


def test_only_members_commit_while_a_group_has_some(wire, topic):
    group = unique("g")
    joined = stable(wire, group)
    member = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
    assert commit(wire, group, topic, 1, **member) is E.none
    assert commit(wire, group, topic, 1) is E.unknown_member_id
    member["generation_id_or_member_epoch"] = 9
    assert commit(wire, group, topic, 1, **member) is E.illegal_generation
    assert commit(wire, unique("g"), topic, 1, **member) is E.illegal_generation


def fetched(wire: Wire, group: str, topic: str, *partitions: int) -> Any:
    answer = wire.ask(
        K.OFFSET_FETCH,
        7,
        group_id=group,
        topics=[{"name": topic, "partition_indexes": partitions or (0,)}],
        require_stable=True,
    )
    assert answer.error_code is E.none
    return answer.topics[0].partitions


@pytest.mark.parametrize("version", versions(K.OFFSET_FETCH))
def test_offsets_are_fetched_at_every_version(wire, topic, version):
    group, none = unique("g"), unique("g")
    commit(wire, group, topic, 5)
    wanted = [{"name": topic, "partition_indexes": [0, 1]}]
    for name, everything in ((group, False), (none, False), (group, True), (none, True)):
        if everything and version < 2:
            continue
        topics = None if everything else wanted
        asked = {"group_id": name, "topics": topics, "member_id": None, "member_epoch": -1}
        answer = wire.ask(K.OFFSET_FETCH, version, **asked, groups=[asked], require_stable=False)
        found = answer.groups[0].topics if version >= 8 else answer.topics
        rows = {
            row.partition_index: row.committed_offset for one in found for row in one.partitions
        }
        if everything:
            assert rows == ({0: 5} if name == group else {})
        else:
            assert rows == ({0: 5, 1: -1} if name == group else {0: -1, 1: -1})
        assert all(row.error_code is E.none for one in found for row in one.partitions)


def test_offsets_of_several_groups_are_fetched_at_once(wire, topic):
    first, second = unique("g"), unique("g")
    commit(wire, first, topic, 1)
    commit(wire, second, topic, 2)
    asked = [
        {"group_id": name, "topics": None, "member_id": None, "member_epoch": -1}
        for name in (first, second)
    ]
    answer = wire.ask(K.OFFSET_FETCH, 9, groups=asked, require_stable=True)
    offsets = {row.group_id: row.topics[0].partitions[0].committed_offset for row in answer.groups}
    assert offsets == {first: 1, second: 2}


def test_offsets_are_deleted(wire, topic):
    group = unique("g")
    commit(wire, group, topic, 1)

    def delete(name: str, *partitions: int) -> Any:
        rows = [{"partition_index": number} for number in partitions]
        asked = [{"name": topic, "partitions": rows}]
        return wire.ask(K.OFFSET_DELETE, 0, group_id=name, topics=asked)

    answer = delete(group, 0, 1, 1000)
    assert answer.error_code is E.none
    codes = [row.error_code for row in answer.topics[0].partitions]
    assert codes == [E.none, E.none, E.unknown_topic_or_partition]
    assert fetched(wire, group, topic)[0].committed_offset == -1
    assert delete(unique("g"), 0).error_code is E.group_id_not_found


@pytest.mark.parametrize("version", versions(K.DESCRIBE_GROUPS))
def test_groups_are_described_at_every_version(wire, version):
    group = unique("g")
    joined = stable(wire, group)
    answer = wire.ask(
        K.DESCRIBE_GROUPS, version, groups=[group, "unknown"], include_authorized_operations=True
    )
    known, unknown = answer.groups
    assert (known.error_code, known.group_state) == (E.none, "Stable")
    assert (known.protocol_type, known.protocol_data) == ("consumer", "range")
    (member,) = known.members
    assert member.member_id == joined.member_id
    assert member.client_id == "wire"
    assert member.client_host == "/127.0.0.1"
    assert member.member_metadata == b"meta"
    assert member.member_assignment == joined.member_id.encode()
    assert (unknown.error_code, unknown.group_state) == (E.none, "Dead")
    if version >= 3:
        assert known.authorized_operations == 0b1_0100_1000


@pytest.mark.parametrize("version", versions(K.LIST_GROUPS))
def test_groups_are_listed_at_every_version(wire, topic, version):
    busy, idle = unique("g"), unique("g")
    stable(wire, busy)
    commit(wire, idle, topic, 1)

    def listed(states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> dict[str, Any]:
        answer = wire.ask(K.LIST_GROUPS, version, states_filter=states, types_filter=types)
        assert answer.error_code is E.none
        return {row.group_id: row for row in answer.groups if row.group_id in (busy, idle)}

    assert set(listed()) == {busy, idle}
    assert listed()[busy].protocol_type == "consumer"
    assert listed()[idle].protocol_type == ""
    if version >= 4:
        assert set(listed(("stable",))) == {busy}
        assert set(listed(("Empty", "Dead"))) == {idle}
        assert listed()[busy].group_state == "Stable"
    if version >= 5:
        assert set(listed(types=("Classic",))) == {busy, idle}
        assert not listed(types=("consumer",))


@pytest.mark.parametrize("version", versions(K.DELETE_GROUPS))
def test_groups_are_deleted_at_every_version(wire, topic, version):
    busy, idle = unique("g"), unique("g")
    stable(wire, busy)
    commit(wire, idle, topic, 1)
    answer = wire.ask(K.DELETE_GROUPS, version, groups_names=[busy, idle, "unknown"])
    codes = {row.group_id: row.error_code for row in answer.results}
    assert codes == {
        busy: E.non_empty_group,
        idle: E.none,
        "unknown": E.group_id_not_found,
    }
    assert fetched(wire, idle, topic)[0].committed_offset == -1


@pytest.mark.parametrize("version", versions(K.FIND_COORDINATOR))
@pytest.mark.parametrize("kind", [0, 1])
def test_this_broker_coordinates_everything(kafka_onelog: KafkaOnelog, wire, version, kind):
    answer = wire.ask(
        K.FIND_COORDINATOR, version, key="k", key_type=kind, coordinator_keys=["k", "l"]
    )
    rows = answer.coordinators if version >= 4 else [answer]
    assert {row.port for row in rows} == {kafka_onelog.port}
    assert {row.error_code for row in rows} == {E.none}
    if version >= 4:
        assert [row.key for row in rows] == ["k", "l"]


@pytest.mark.parametrize("version", [1, 3, 4, 6])
def test_a_coordinator_of_a_kind_that_is_not_known(wire, version):
    answer = wire.ask(K.FIND_COORDINATOR, version, key="k", key_type=2, coordinator_keys=["k"])
    rows = answer.coordinators if version >= 4 else [answer]
    assert rows[0].error_code is E.invalid_request


# -- several members


def test_a_second_member_makes_the_first_join_again(dial):
    group, (first, second) = unique("g"), (dial(), dial())
    joined = stable(first, group)
    invited = second.ask(K.JOIN_GROUP, 9, **joining(group))
    second.send(K.JOIN_GROUP, 9, **joining(group, invited.member_id))
    beat = {"group_id": group, "generation_id": 1, "member_id": joined.member_id}
    deadline = time.monotonic() + 10
    while first.ask(K.HEARTBEAT, 4, **beat).error_code is not E.rebalance_in_progress:
        assert time.monotonic() < deadline
    again = first.ask(K.JOIN_GROUP, 9, **joining(group, joined.member_id))
    other = second.answer(K.JOIN_GROUP, 9)
    assert (again.generation_id, other.generation_id) == (2, 2)
    assert again.leader == other.leader == joined.member_id
    assert len(again.members) == 2
    second.send(K.SYNC_GROUP, 5, **syncing(group, other))
    mine = first.ask(K.SYNC_GROUP, 5, **syncing(group, again))
    assert mine.assignment == again.member_id.encode()
    assert second.answer(K.SYNC_GROUP, 5).assignment == other.member_id.encode()


@pytest.mark.parametrize("version", [5, 9])
def test_a_static_member_that_starts_anew_keeps_its_part_and_fences_the_old_one(dial, version):
    group, (first, second) = unique("g"), (dial(), dial())
    joined = stable(first, group, group_instance_id="i")
    back = second.ask(K.JOIN_GROUP, version, **joining(group, group_instance_id="i"))
    assert back.error_code is E.none
    assert back.generation_id == 1
    assert back.member_id != joined.member_id
    if version >= 9:
        assert back.skip_assignment
        assert back.leader == back.member_id
    else:
        assert back.leader == joined.member_id
    mine = second.ask(K.SYNC_GROUP, 5, **syncing(group, back, group_instance_id="i"))
    assert mine.assignment == joined.member_id.encode()
    old = {"group_id": group, "generation_id": 1, "member_id": joined.member_id}
    beat = first.ask(K.HEARTBEAT, 4, **old, group_instance_id="i")
    assert beat.error_code is E.fenced_instance_id
    assert first.ask(K.HEARTBEAT, 4, **old).error_code is E.unknown_member_id


def test_an_administrator_sends_a_static_member_away(dial):
    group, (first, admin) = unique("g"), (dial(), dial())
    stable(first, group, group_instance_id="i")
    rows = [
        {"member_id": "", "group_instance_id": name, "reason": None} for name in ("i", "unknown")
    ]
    answer = admin.ask(K.LEAVE_GROUP, 5, group_id=group, members=rows)
    assert [row.error_code for row in answer.members] == [E.none, E.unknown_member_id]


def test_any_type_of_group_is_coordinated(wire):
    group = unique("connect")
    joined = join(
        wire,
        group,
        protocol_type="connect",
        protocols=[
            {"name": "sessioned", "metadata": b"\0worker"},
            {"name": "default", "metadata": b""},
        ],
    )
    assert (joined.protocol_type, joined.protocol_name) == ("connect", "sessioned")
    asked = syncing(group, joined, protocol_type="connect", protocol_name="sessioned")
    assert wire.ask(K.SYNC_GROUP, 5, **asked).error_code is E.none


# -- over a restart


@pytest.mark.parametrize("hard", [False, True])
def test_members_and_offsets_outlive_a_restart(tmp_path, hard):
    server = KafkaOnelog(tmp_path, GROUPS_AT_ONCE).start()
    try:
        group = "g"
        with Wire(server.port) as wire:
            wire.ask(K.METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
            joined = stable(wire, group)
            member = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
            while commit(wire, group, "t", 5, **member) is E.unknown_topic_or_partition:
                time.sleep(0.05)
        if hard:
            server.kill()
        else:
            assert server.stop() == 0
        server.start()
        with Wire(server.port) as wire:
            beat = {"group_id": group, "generation_id": 1, "member_id": joined.member_id}
            assert wire.ask(K.HEARTBEAT, 4, **beat).error_code is E.none
            assert fetched(wire, group, "t")[0].committed_offset == 5
            answer = wire.ask(K.SYNC_GROUP, 5, **syncing(group, joined))
            assert answer.assignment == joined.member_id.encode()
            assert commit(wire, group, "t", 6, **member) is E.none
    finally:
        server.stop()
