"""Rules by protocols by operations by what happens to the rules while things are open.

The table of operations is in `access_operations.py`. For each of them, on real sockets:
without rules it is done; when there is another rule it is refused; with the rights that it needs
it is done, on what was open before; without any one of them it is refused; a rule that denies wins;
and without rules it is done again.

Each operation is also tried by peers with a name, a group, a certificate and a claim: every kind of
selector, and `%u`, means them; `%c` is in rows of MQTT.

What a protocol serves is in the table, or in `access_exceptions.py` with the test that proves why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from onelog.protocols.amqp.handlers import HANDLERS as AMQP_METHODS
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.apis import SERVED as KAFKA_APIS
from onelog.protocols.mqtt.handlers import HANDLERS as MQTT_PACKETS
from onelog.protocols.mqtt.packets import Pubcomp, Publish, Pubrec, Pubrel
from onelog.security.identity import Identity
from tests.conformance.amqp_raw import Basic, Channel, Confirm, Raw, RawChannel, Tx
from tests.cross.access_exceptions import EXCEPTIONS
from tests.cross.access_operations import cases
from tests.cross.access_table import YES, Operation
from tests.support.access import House, house
from tests.support.kafka_wire import Wire
from tests.support.mqtt import connect

ROOT = Path(__file__).resolve().parents[2]
OTHER = "allow user:somebody-else publish topic:elsewhere"
SERVED: dict[str, Iterable[object]] = {
    "mqtt": MQTT_PACKETS,
    "kafka": tuple(map(ApiKey, KAFKA_APIS)),
    "amqp": (*AMQP_METHODS, Basic.Publish, Channel.Close),
}
"""What each protocol serves. Its tables lack what the channel of AMQP does itself."""


def allowed(rights: tuple[str, ...], who: str = "anonymous") -> list[str]:
    return [f"allow {who} {right}" for right in rights]


@pytest.mark.parametrize("operation", cases(), ids=lambda row: f"{row.protocol}-{row.name}")
async def test_an_operation_needs_its_rights_and_hears_when_they_change(tmp_path, operation):
    await _check(tmp_path, operation)


NAMED = Identity("b", "certificate", claims=("role=writer",))
MEANT = ("user:b", "group:lab", "certificate:b", "claim:role=writer")
"""Each kind of selector that means those peers."""
OTHERS = "anonymous,user:c,group:ops,certificate:c,claim:role=reader"


@pytest.mark.parametrize("operation", cases(), ids=lambda row: f"{row.protocol}-{row.name}")
async def test_every_kind_of_selector_means_its_peers_in_every_operation(tmp_path, operation):
    rights, refused = operation.rights, operation.refused
    given = allowed(operation.given, "everyone")
    async with house(tmp_path, NAMED, groups=("lab",)) as place:
        act = await operation.begin(place)
        await place.only(*given, *allowed(rights, OTHERS))
        assert await act() == refused, "what others may"
        for who in MEANT:
            await place.only(OTHER, *given, *allowed(rights, who))
            assert await act() == YES, f"allowed for {who} while it was open"
            await place.only(*given, *allowed(rights, "everyone"), f"deny {who} {rights[0]}")
            assert await act() == refused, f"denied to {who}"
        by_user = [right.replace(":a/b", ":a/%u") for right in rights]
        if tuple(by_user) != rights:
            await place.only(*given, *allowed(tuple(by_user), "everyone"))
            assert await act() == YES, by_user


async def _check(tmp_path, operation: Operation) -> None:
    rights, refused = operation.rights, operation.refused
    given = allowed(operation.given)
    async with house(tmp_path) as place:
        act = await operation.begin(place)
        assert await act() == YES, "without rules"
        await place.only(OTHER, *given)
        assert await act() == refused, "another rule: what no rule allows is denied"
        for who in ("anonymous", "everyone"):
            await place.only(OTHER, *given, *allowed(rights, who))
            assert await act() == YES, f"allowed for {who} while it was open"
        for left_out in rights:
            others = tuple(right for right in rights if right != left_out)
            await place.only(*given, *allowed(others), *allowed((left_out,), "user:ann"))
            assert await act() == refused, f"without {left_out}"
            await place.only(*given, *allowed(rights), f"deny everyone {left_out}")
            assert await act() == refused, f"denied {left_out}"
        await place.only()
        assert await act() == YES, "without rules again"


@pytest.mark.parametrize("protocol", SERVED)
def test_what_a_protocol_serves_is_in_the_matrix_or_excepted_with_a_reason(protocol):
    tried = {row.uses for row in cases() if row.protocol == protocol}
    excepted = EXCEPTIONS[protocol].keys()
    served = set(SERVED[protocol])
    assert served - tried - excepted == set(), "in no row, and no exception"
    assert not tried & excepted
    assert tried | excepted <= served, "not served any more"


@pytest.mark.parametrize("protocol", SERVED)
def test_a_test_proves_each_exception(protocol):
    for uses, exempt in EXCEPTIONS[protocol].items():
        file, _, name = exempt.test.partition("::")
        assert exempt.reason, uses
        assert f"def {name}(" in (ROOT / file).read_text(), (uses, exempt.test)


async def test_mqtt_clients_do_what_needs_no_right_where_nothing_is_allowed(tmp_path):
    async with house(tmp_path) as place:
        client, publisher = [await connect(place.ports["mqtt"], name) for name in "cp"]
        await client.subscribe("a/+", 2)
        for qos in (1, 2):
            await publisher.publish("a/b", "x", qos=qos)
        held = [await client.message() for _ in range(2)]
        await client.send(Publish(topic="a/c", payload=b"x", qos=2, packet_id=9))
        await client.receive(Pubrec)
        await place.only(OTHER)
        for message in held:  # PUBACK; PUBREC and PUBCOMP
            await client.acknowledge(message)
        await client.send(Pubrel(9))
        assert (await client.receive(Pubcomp)).reason < 0x80
        assert await client.unsubscribe("a/+") < 0x80
        await client.sync()  # PINGREQ
        for each in (client, publisher):
            await each.disconnect()


async def test_kafka_clients_do_what_needs_no_right_where_nothing_is_allowed(tmp_path):
    async with house(tmp_path) as place:
        await place.only(OTHER)

        def ask() -> None:
            with Wire(place.ports["kafka"]) as wire:
                found = wire.ask(ApiKey.API_VERSIONS, 2)
                assert {row.api_key for row in found.api_keys} == set(APIS)

        await asyncio.to_thread(ask)


async def test_amqp_clients_do_what_needs_no_right_where_nothing_is_allowed(tmp_path):
    async with house(tmp_path) as place:
        raw, channel = await asyncio.to_thread(_holding, place)
        await place.only(OTHER)
        await asyncio.to_thread(_settle, raw, channel)


def _holding(place: House) -> tuple[Raw, RawChannel]:
    """A channel that holds five messages."""
    raw = Raw(place.ports["amqp"]).open()
    place.at_end.append(raw.socket.close)
    channel = raw.channel()
    channel.queue("q")
    for _ in range(5):
        channel.publish("", "q", "x")
    for _ in range(5):
        assert channel.get("q", no_ack=False) is not None
    return raw, channel


def _settle(raw: Raw, channel: RawChannel) -> None:
    channel.ack(1)
    channel.nack(2, requeue=False)
    channel.send(Basic.Reject(delivery_tag=3, requeue=False))
    with pytest.warns(DeprecationWarning):
        channel.send(Basic.RecoverAsync(requeue=True))
    channel.ask(Basic.Recover(requeue=True), Basic.RecoverOk)
    channel.qos(10)
    channel.ask(Channel.Flow(active=True), Channel.FlowOk)
    channel.send(Channel.FlowOk(active=True))
    channel.ask(Basic.Cancel(consumer_tag="none"), Basic.CancelOk)
    channel.send(Basic.CancelOk(consumer_tag="none"))
    channel.ask(Confirm.Select(), Confirm.SelectOk)
    channel.close()
    other = raw.channel()
    other.ask(Tx.Select(), Tx.SelectOk)
    other.ask(Tx.Rollback(), Tx.RollbackOk)
    other.close()
