"""What one node says of access lists, leaders, replicas, directories, its quorum and its users."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from onelog.base.errors import PartitionStopped
from onelog.broker import Action, AllowAll
from onelog.protocols.kafka.admin.broker_settings import log_dir
from onelog.protocols.kafka.admin.topic_partitions import PARTITIONS_MAX
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.refusals import REFUSALS
from onelog.security.authenticator import Authenticator
from onelog.security.identity import ANONYMOUS, Identity
from tests.support.kafka_admin import Denies, Desk, desk

E = ErrorCode
K = ApiKey
MANY = (129, 65_537)
"""More than a byte counts, and more than two."""


def versions(key: ApiKey) -> range:
    return range(APIS[key].first, APIS[key].last + 1)


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path) as made:
        await made.create("t", 2)
        yield made


# -- access lists

FILTER = {
    "resource_type_filter": 2,
    "resource_name_filter": None,
    "pattern_type_filter": 3,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
ENTRY = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


async def administrator(admin: Desk) -> None:
    """The first rule is for administrators."""
    users = admin.hub.authenticator.users
    await users.add("admin", "a password", scram=False, administrator=True)


@pytest.mark.parametrize("version", versions(K.DESCRIBE_ACLS))
async def test_where_the_program_decides_there_are_no_access_lists(tmp_path, version) -> None:
    async with desk(tmp_path, authorizer=AllowAll()) as admin:
        told = await admin.ask(K.DESCRIBE_ACLS, version, **FILTER)
        assert (told.error_code, told.resources) == (E.security_disabled, ())
        made = await admin.ask(K.CREATE_ACLS, version, creations=[ENTRY, ENTRY])
        assert [row.error_code for row in made.results] == [E.security_disabled] * 2
        gone = await admin.ask(K.DELETE_ACLS, version, filters=[FILTER])
        assert [row.error_code for row in gone.filter_results] == [E.security_disabled]
        assert all(row.error_message for row in (told, *made.results, *gone.filter_results))


@pytest.mark.parametrize("version", versions(K.DESCRIBE_ACLS))
async def test_an_access_list_is_made_shown_and_deleted_by_every_version(admin, version) -> None:
    await administrator(admin)
    mine = {**ENTRY, "resource_type": 4, "resource_name": "kafka-cluster", "operation": 2}
    own = {**mine, "principal": "User:admin"}
    made = await admin.ask(K.CREATE_ACLS, version, creations=[own, ENTRY, ENTRY])
    assert [row.error_code for row in made.results] == [E.none] * 3
    told = await admin.ask(K.DESCRIBE_ACLS, version, **FILTER)
    assert [row.resource_name for row in told.resources] == ["t"]
    gone = await admin.ask(K.DELETE_ACLS, version, filters=[FILTER])
    assert [row.resource_name for row in gone.filter_results[0].matching_acls] == ["t"]


@pytest.mark.parametrize("count", MANY)
async def test_lists_of_access_lists_may_be_long(admin, count) -> None:
    await administrator(admin)
    made = await admin.ask(K.CREATE_ACLS, creations=[ENTRY] * count)
    gone = await admin.ask(K.DELETE_ACLS, filters=[FILTER] * count)
    assert len(made.results) == len(gone.filter_results) == count


# -- leaders


def stop(admin: Desk, name: str, number: int) -> None:
    log = admin.hub.topics.get(name).partition(number).log
    log.stop(PartitionStopped("it is damaged"))


async def elect(admin: Desk, kind: int, *numbers: int, version: int = 2, topic: str = "t"):
    asked = [{"topic": topic, "partitions": numbers}]
    told = await admin.ask(
        K.ELECT_LEADERS, version, election_type=kind, topic_partitions=asked, timeout=1000
    )
    (row,) = told.replica_election_results
    assert row.topic == topic
    return [(part.partition_id, part.error_code) for part in row.partition_result]


@pytest.mark.parametrize("version", versions(K.ELECT_LEADERS))
async def test_no_leader_has_to_be_elected(admin, version) -> None:
    assert await elect(admin, 0, 0, 1, 2, version=version) == [
        (0, E.election_not_needed),
        (1, E.election_not_needed),
        (2, E.unknown_topic_or_partition),
    ]
    assert await elect(admin, 0, 0, version=version, topic="no") == [
        (0, E.unknown_topic_or_partition)
    ]
    everything = await admin.ask(K.ELECT_LEADERS, version, topic_partitions=None, timeout=1000)
    assert everything.replica_election_results == ()


async def test_a_partition_that_is_stopped_gets_no_leader(admin) -> None:
    stop(admin, "t", 1)
    assert await elect(admin, 0, 1) == [(1, E.preferred_leader_not_available)]
    assert await elect(admin, 1, 1) == [(1, E.eligible_leaders_not_available)]


@pytest.mark.parametrize("count", MANY)
async def test_elections_of_many_partitions_are_answered_one_by_one(admin, count) -> None:
    told = await elect(admin, 0, *range(count))
    assert [number for number, _ in told] == list(range(count))


# -- reassignments


async def reassign(admin: Desk, *rows: tuple[str, int, tuple[int, ...] | None], version: int = 1):
    topics = [
        {"name": name, "partitions": [{"partition_index": number, "replicas": replicas}]}
        for name, number, replicas in rows
    ]
    told = await admin.ask(K.ALTER_PARTITION_REASSIGNMENTS, version, topics=topics, timeout=1000)
    assert told.error_code is E.none
    return [row.partitions[0].error_code for row in told.responses]


@pytest.mark.parametrize("version", versions(K.ALTER_PARTITION_REASSIGNMENTS))
async def test_a_partition_is_where_it_can_be_and_goes_nowhere_else(admin, version) -> None:
    assert await reassign(
        admin,
        ("t", 0, (0,)),
        ("t", 1, (1,)),
        ("t", 1, (0, 1)),
        ("t", 1, ()),
        ("t", 1, None),
        ("t", 2, (0,)),
        ("no", 0, (0,)),
        version=version,
    ) == [
        E.none,
        E.invalid_replica_assignment,
        E.invalid_replica_assignment,
        E.invalid_replica_assignment,
        E.no_reassignment_in_progress,
        E.unknown_topic_or_partition,
        E.unknown_topic_or_partition,
    ]
    told = await admin.ask(K.LIST_PARTITION_REASSIGNMENTS, topics=None, timeout=1000)
    assert (told.error_code, told.topics) == (E.none, ())


@pytest.mark.parametrize("count", MANY)
async def test_many_reassignments_are_answered_one_by_one(admin, count) -> None:
    assert await reassign(admin, *[("t", 0, (0,))] * count) == [E.none] * count


# -- directories


@pytest.mark.parametrize("version", versions(K.ALTER_REPLICA_LOG_DIRS))
async def test_replicas_stay_in_the_one_directory(admin, version) -> None:
    topics = [{"name": "t", "partitions": [0, 1, 2]}, {"name": "no", "partitions": [0]}]
    here = {"path": log_dir(admin.hub.config), "topics": topics}
    there = {"path": "/elsewhere", "topics": topics[:1]}
    told = await admin.ask(K.ALTER_REPLICA_LOG_DIRS, version, dirs=[here, there])
    found = [(row.topic_name, [part.error_code for part in row.partitions]) for row in told.results]
    assert found == [
        ("t", [E.none, E.none, E.unknown_topic_or_partition]),
        ("no", [E.unknown_topic_or_partition]),
        ("t", [E.log_dir_not_found] * 3),
    ]


@pytest.mark.parametrize("count", MANY)
async def test_many_replicas_are_answered_one_by_one(admin, count) -> None:
    row = {"path": "/x", "topics": [{"name": "t", "partitions": range(count)}]}
    told = await admin.ask(K.ALTER_REPLICA_LOG_DIRS, dirs=[row])
    assert len(told.results[0].partitions) == count


# -- the quorum


@pytest.mark.parametrize("version", versions(K.DESCRIBE_QUORUM))
async def test_this_node_is_the_quorum(admin, version) -> None:
    topics = [
        {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]},
        {"topic_name": "t", "partitions": [{"partition_index": 0}]},
    ]
    told = await admin.ask(K.DESCRIBE_QUORUM, version, topics=topics)
    (own,), (other,) = (row.partitions for row in told.topics)
    assert (told.error_code, own.error_code, own.leader_id) == (E.none, E.none, 0)
    (voter,) = own.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (0, own.high_watermark)
    assert own.high_watermark > 0
    assert other.error_code is E.unknown_topic_or_partition
    if version >= 2:
        assert [(row.node_id, len(row.listeners)) for row in told.nodes] == [(0, 1)]


# -- partitions, some at a time


async def partitions(admin: Desk, *names: str, limit: int = 2000, at=None):
    told = await admin.ask(
        K.DESCRIBE_TOPIC_PARTITIONS,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=None if at is None else {"topic_name": at[0], "partition_index": at[1]},
    )
    following = told.next_cursor
    rows = [
        (row.name, row.error_code, [part.partition_index for part in row.partitions])
        for row in told.topics
    ]
    return rows, following and (following.topic_name, following.partition_index)


async def test_partitions_are_told_some_at_a_time_and_each_once(admin) -> None:
    await admin.create("a", 3)
    await admin.create("z", 1)
    for limit in (1, 2, 3, 4, 5, 6, 7, 2000, -1, 0):
        found: list[tuple[str, int]] = []
        at = None
        for _ in range(10):
            rows, at = await partitions(admin, limit=limit, at=at)
            told = [(name, number) for name, _, numbers in rows for number in numbers]
            assert len(told) <= max(limit, 1)
            found += told
            if at is None:
                break
        assert found == [("a", 0), ("a", 1), ("a", 2), ("t", 0), ("t", 1), ("z", 0)]


async def test_topics_that_are_named_are_told_of_in_their_order(admin) -> None:
    await admin.create("a", 3)
    rows, at = await partitions(admin, "t", "a", "no", "a")
    assert rows == [
        ("a", E.none, [0, 1, 2]),
        ("no", E.unknown_topic_or_partition, []),
        ("t", E.none, [0, 1]),
    ]
    assert at is None
    rows, _ = await partitions(admin, "t", "a", at=("a", 7))
    assert rows == [("a", E.none, []), ("t", E.none, [0, 1])]


async def test_more_partitions_than_an_answer_takes_are_cut(admin) -> None:
    await admin.create("many", PARTITIONS_MAX + 1, onelog__engine="memory")
    rows, at = await partitions(admin, "many", limit=10**6)
    assert len(rows[0][2]) == PARTITIONS_MAX
    assert at == ("many", PARTITIONS_MAX)


async def test_a_partition_that_is_stopped_has_no_leader(admin) -> None:
    stop(admin, "t", 1)
    told = await admin.ask(
        K.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": "t"}], response_partition_limit=9
    )
    first, second = told.topics[0].partitions
    assert (first.leader_id, first.isr_nodes, first.offline_replicas) == (0, (0,), ())
    assert (second.leader_id, second.isr_nodes, second.offline_replicas) == (-1, (), (0,))
    assert second.error_code is E.leader_not_available


# -- who may


async def test_who_may_not_manage_the_cluster_is_refused(tmp_path) -> None:
    async with desk(tmp_path, authorizer=Denies(Action.ADMIN, "cluster")) as admin:
        await admin.create("t", 1)
        for key, body in (
            (K.ELECT_LEADERS, {"topic_partitions": None, "timeout": 1}),
            (K.ALTER_PARTITION_REASSIGNMENTS, {"topics": [], "timeout": 1}),
        ):
            with pytest.raises(KafkaError) as caught:
                await admin.ask(key, **body)
            assert caught.value.code is E.cluster_authorization_failed
            assert key in REFUSALS, "the answer says so"
        row = {"path": log_dir(admin.hub.config), "topics": [{"name": "t", "partitions": [0]}]}
        told = await admin.ask(K.ALTER_REPLICA_LOG_DIRS, dirs=[row])
        assert told.results[0].partitions[0].error_code is E.cluster_authorization_failed


# -- users

SHA_256, SHA_512 = 1, 2


def upsertion(name: str, mechanism: int = SHA_256, **changes):
    digest, size = (("sha256", 32), ("sha512", 64))[mechanism == SHA_512]
    salted = hashlib.pbkdf2_hmac(digest, b"secret", b"salt", 4096)
    assert len(salted) == size
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": salted,
    } | changes


@pytest.fixture
async def users(tmp_path: Path) -> AsyncIterator[SimpleNamespace]:
    async with desk(tmp_path) as admin:
        authenticator = await Authenticator.open(admin.broker.store, admin.clock)
        admin.hub.authenticator = authenticator
        await authenticator.users.add("root", "password", scram=False, administrator=True)
        admin._connection.identity = Identity("root", "password", 1)

        async def alter(*upsertions, gone=()):
            told = await admin.ask(
                K.ALTER_USER_SCRAM_CREDENTIALS,
                upsertions=upsertions,
                deletions=[{"name": name, "mechanism": number} for name, number in gone],
            )
            return [(row.user, row.error_code) for row in told.results]

        async def describe(*names: str):
            asked = [{"name": name} for name in names] if names else None
            told = await admin.ask(K.DESCRIBE_USER_SCRAM_CREDENTIALS, users=asked)
            assert told.error_code is E.none
            return [
                (
                    row.user,
                    row.error_code,
                    [(each.mechanism, each.iterations) for each in row.credential_infos],
                )
                for row in told.results
            ]

        yield SimpleNamespace(alter=alter, describe=describe, admin=admin, security=authenticator)
        await authenticator.close()


async def test_a_user_gets_credentials_and_loses_them(users) -> None:
    assert await users.alter(upsertion("a"), upsertion("a", SHA_512), upsertion("b")) == [
        ("a", E.none),
        ("b", E.none),
    ]
    assert await users.describe() == [
        ("a", E.none, [(1, 4096), (2, 4096)]),
        ("b", E.none, [(1, 4096)]),
    ]
    assert users.security.knows("a")
    assert await users.alter(upsertion("b", SHA_512), gone=[("a", 1), ("b", 1)]) == [
        ("a", E.none),
        ("b", E.none),
    ]
    assert await users.describe("a", "b") == [
        ("a", E.none, [(2, 4096)]),
        ("b", E.none, [(2, 4096)]),
    ]
    assert await users.alter(gone=[("a", 2)]) == [("a", E.none)]
    assert not users.security.knows("a"), "nothing is left of it"


async def test_a_user_with_a_password_keeps_it(users) -> None:
    await users.security.users.add("a", "password")
    await users.alter(upsertion("a"))
    assert (await users.security.password("a", b"password")).name == "a"
    await users.alter(gone=[("a", 1), ("a", 2)])
    assert await users.describe("a") == [("a", E.resource_not_found, [])]
    assert (await users.security.password("a", b"password")).name == "a"


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (upsertion("a", iterations=4095), E.unacceptable_credential),
        (upsertion("a", iterations=16_385), E.unacceptable_credential),
        (upsertion("a", salted_password=b"short"), E.unacceptable_credential),
        (upsertion("a", salt=b""), E.unacceptable_credential),
        (upsertion("", SHA_256), E.unacceptable_credential),
        (upsertion("local"), E.unacceptable_credential),
        (upsertion("x" * 257), E.unacceptable_credential),
        (upsertion("a") | {"mechanism": 3}, E.unsupported_sasl_mechanism),
    ],
)
async def test_a_credential_that_cannot_be_is_refused_and_the_others_are_not(
    users, row, code
) -> None:
    assert await users.alter(row, upsertion("good")) == [(row["name"], code), ("good", E.none)]
    assert [name for name, *_ in await users.describe()] == ["good"]


async def test_what_is_named_twice_is_refused(users) -> None:
    assert await users.alter(upsertion("a"), upsertion("a")) == [("a", E.duplicate_resource)]
    assert await users.alter(upsertion("a"), gone=[("a", 1)]) == [("a", E.duplicate_resource)]
    assert await users.alter(gone=[("nobody", 1)]) == [("nobody", E.resource_not_found)]
    assert await users.describe("a", "a") == [("a", E.duplicate_resource, [])]


async def test_many_users_are_made_and_told_of(users) -> None:
    names = [f"u{number:03}" for number in range(129)]
    told = await users.alter(*(upsertion(name) for name in names))
    assert told == [(name, E.none) for name in names]
    assert [name for name, *_ in await users.describe()] == names
    assert [name for name, *_ in await users.describe(*names)] == names
    missing = [f"n{number}" for number in range(65_537)]
    assert {code for _, code, _ in await users.describe(*missing)} == {E.resource_not_found}


async def test_who_has_no_name_sees_and_changes_no_user(users) -> None:
    users.admin._connection.identity = ANONYMOUS
    assert await users.alter(upsertion("a")) == [("a", E.cluster_authorization_failed)]
    with pytest.raises(KafkaError) as caught:
        await users.describe()
    assert caught.value.code is E.cluster_authorization_failed
    assert not users.security.knows("a")


async def test_who_is_no_administrator_sees_and_changes_only_itself(users) -> None:
    await users.security.users.add("ann", "password", scram=False)
    await users.alter(upsertion("bob"))
    users.admin._connection.identity = Identity("ann", "password", 1)
    assert await users.alter(upsertion("bob"), upsertion("eve"), upsertion("ann")) == [
        ("bob", E.cluster_authorization_failed),
        ("eve", E.cluster_authorization_failed),
        ("ann", E.none),
    ]
    assert not users.security.knows("eve")
    assert await users.describe("ann") == [("ann", E.none, [(1, 4096)])]
    for names in ((), ("bob",), ("ann", "bob")):
        with pytest.raises(KafkaError) as caught:
            await users.describe(*names)
        assert caught.value.code is E.cluster_authorization_failed
