"""Kafka's ACL APIs read and write the one access list, by librdkafka's admin client and by hand."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from onelog.broker import Action, Kind, Principal
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.support.access import House, house
from tests.support.kafka_wire import Wire

ADMIN = "allow anonymous admin server"
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP


def binding(
    kind=TOPIC,
    name="orders.eu",
    pattern=LITERAL,
    principal="User:ann",
    operation=AclOperation.READ,
    permission=ALLOW,
    host="*",
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, host, operation, permission)


def anything(**changes) -> AclBindingFilter:
    chosen = {
        "restype": ResourceType.ANY,
        "name": None,
        "resource_pattern_type": ResourcePatternType.ANY,
        "principal": None,
        "host": None,
        "operation": AclOperation.ANY,
        "permission_type": AclPermissionType.ANY,
    } | changes
    return AclBindingFilter(**chosen)


def client(place: House) -> AdminClient:
    return AdminClient({"bootstrap.servers": f"127.0.0.1:{place.ports['kafka']}"})


async def made(place: House, *rows: AclBinding) -> None:
    def work() -> None:
        admin = client(place)
        for future in admin.create_acls(list(rows)).values():
            future.result(30)

    await asyncio.to_thread(work)


async def described(place: House, chosen: AclBindingFilter) -> set[AclBinding]:
    admin = client(place)  # without a name it would be gone before its answer
    return set(await asyncio.to_thread(lambda: admin.describe_acls(chosen).result(30)))


async def deleted(place: House, chosen: AclBindingFilter) -> set[AclBinding]:
    def work() -> set[AclBinding]:
        admin = client(place)
        return set(admin.delete_acls([chosen])[chosen].result(30))

    return await asyncio.to_thread(work)


ROWS = [
    binding(),
    binding(operation=AclOperation.WRITE, name="orders.", pattern=PREFIXED),
    binding(operation=AclOperation.ALL, name="*", principal="User:*", permission=DENY),
    binding(operation=AclOperation.ALTER),
    binding(operation=AclOperation.ALTER_CONFIGS),
    binding(operation=AclOperation.DESCRIBE),
    binding(operation=AclOperation.CREATE, principal="User:ANONYMOUS"),
    binding(operation=AclOperation.DELETE, principal="Group:ops"),
    binding(GROUP, "billing", operation=AclOperation.READ),
    binding(GROUP, "bill", PREFIXED, operation=AclOperation.DELETE),
    binding(GROUP, "*", operation=AclOperation.DESCRIBE),
    binding(ResourceType.BROKER, "kafka-cluster", operation=AclOperation.ALTER),
    binding(ResourceType.TRANSACTIONAL_ID, "tx", PREFIXED, operation=AclOperation.WRITE),
]


async def test_every_acl_comes_back_as_it_was_made_and_goes(tmp_path):
    async with house(tmp_path) as place:
        await place.only(ADMIN, "allow anonymous all topic:own/%u")
        before = await described(place, anything())
        for row in ROWS:
            await made(place, row)
            await made(place, row)  # again: nothing changes
        assert len(place.broker.access.rules) == 2 + len(ROWS)
        assert await described(place, anything()) == before | set(ROWS)
        for row in ROWS:
            found = await deleted(
                place,
                anything(
                    restype=row.restype,
                    name=row.name,
                    resource_pattern_type=row.resource_pattern_type,
                    principal=row.principal,
                    operation=row.operation,
                    permission_type=row.permission_type,
                ),
            )
            assert found == {row}
        assert await described(place, anything()) == before
        assert len(place.broker.access.rules) == 2


async def test_many_acls_go_by_one_filter(tmp_path):
    async with house(tmp_path) as place:
        await place.only(ADMIN)
        rows = [binding(name=f"t{number}") for number in range(150)]
        rows += [binding(name=f"t{number}", permission=DENY) for number in range(150)]
        await made(place, *rows)
        assert await deleted(place, anything(principal="User:ann")) == set(rows)
        (left,) = place.broker.access.rules
        assert "anonymous" in left.text


async def test_an_acl_is_a_rule_for_every_protocol(tmp_path):
    async with house(tmp_path) as place:
        await place.only(ADMIN)
        await made(place, ROWS[0], ROWS[1], binding(name="orders.eu.secret", permission=DENY))
        allows, ann = place.broker.access.allows, Principal("ann", "mqtt")
        assert allows(ann, Action.DELIVER, "orders/eu")
        assert allows(ann, Action.PUBLISH, "orders/us/1")
        assert not allows(ann, Action.DELIVER, "orders/us/1")
        assert not allows(ann, Action.DELIVER, "orders/eu/secret")
        await made(place, binding(GROUP, "billing", operation=AclOperation.READ))
        assert allows(ann, Action.CONSUME, "group/billing", Kind.CURSOR)


async def test_rules_of_the_command_line_are_shown_as_acls_and_keep_what_is_not_deleted(tmp_path):
    async with house(tmp_path) as place:
        await place.only(ADMIN, "allow user:ann,user:bob publish,subscribe topic:a/+/c")
        name = "a._x2B_.c"
        shown = await described(place, anything(restype=TOPIC))
        assert shown == {
            binding(name=name, principal=f"User:{who}", operation=operation)
            for who in ("ann", "bob")
            for operation in (AclOperation.READ, AclOperation.WRITE)
        }
        gone = await deleted(place, anything(principal="User:ann", operation=AclOperation.READ))
        assert len(gone) == 1
        assert [row.text for row in place.broker.access.rules[1:]] == [
            "allow user:ann publish topic:a/+/c",
            "allow user:bob publish,subscribe topic:a/+/c",
        ]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (binding(host="10.0.0.1"), "every host"),
        (binding(principal="Robot:x"), "names no principal"),
        (binding(operation=AclOperation.IDEMPOTENT_WRITE), "is no right here"),
        (binding(GROUP, "a*b"), "no rule can say"),
        (binding(name="a_x25_u"), "no rule can say"),
        (binding(permission=DENY, operation=AclOperation.DESCRIBE), "denies describe"),
        (binding(ResourceType.BROKER, "kafka-cluster", operation=AclOperation.CREATE), "CREATE"),
    ],
)
async def test_what_no_rule_can_say_is_refused_with_the_reason(tmp_path, row, says):
    async with house(tmp_path) as place:
        with pytest.raises(KafkaException, match=says):
            await made(place, row)
        assert not place.broker.access.rules


async def test_who_is_no_administrator_sees_and_changes_no_acl(tmp_path):
    async with house(tmp_path) as place:
        await place.only("allow anonymous all topic:#")
        with Wire(place.ports["kafka"]) as wire:
            chosen = {
                "resource_type_filter": 1,
                "resource_name_filter": None,
                "pattern_type_filter": 1,
                "principal_filter": None,
                "host_filter": None,
                "operation": 1,
                "permission_type": 1,
            }

            def ask() -> set[ErrorCode]:
                seen = wire.ask(ApiKey.DESCRIBE_ACLS, 2, **chosen).error_code
                gone = wire.ask(ApiKey.DELETE_ACLS, 2, filters=[chosen]).filter_results[0]
                return {seen, gone.error_code}

            assert await asyncio.to_thread(ask) == {ErrorCode.cluster_authorization_failed}
            await place.only("allow anonymous describe server:access")
            assert await asyncio.to_thread(ask) == {
                ErrorCode.none,
                ErrorCode.cluster_authorization_failed,
            }


async def test_the_first_rule_and_quotas_are_for_administrators_as_soon_as_there_is_a_user(
    tmp_path,
):
    """Without rules everybody publishes and reads; but the first rule shuts the others out."""
    acl = {
        "resource_type": 2,
        "resource_name": "a",
        "resource_pattern_type": 3,
        "principal": "User:mallory",
        "host": "*",
        "operation": 2,
        "permission_type": 3,
    }
    ops = [{"key": "producer_byte_rate", "value": 1.0, "remove": False}]
    entries = [{"entity": [{"entity_type": "user", "entity_name": "ann"}], "ops": ops}]

    def ask(wire: Wire) -> list[ErrorCode]:
        made = wire.ask(ApiKey.CREATE_ACLS, 2, creations=[acl]).results[0]
        body = {"entries": entries, "validate_only": True}
        return [
            made.error_code,
            wire.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, **body).entries[0].error_code,
        ]

    async with house(tmp_path) as place:
        await place.authenticator.users.add("device", "a password", scram=False)
        with Wire(place.ports["kafka"]) as wire:
            assert (
                await asyncio.to_thread(ask, wire) == [ErrorCode.cluster_authorization_failed] * 2
            )
        assert not place.broker.access.rules
        await place.authenticator.users.remove("device")
        with Wire(place.ports["kafka"]) as wire:
            assert (await asyncio.to_thread(ask, wire))[0] == ErrorCode.none
        assert len(place.broker.access.rules) == 1
