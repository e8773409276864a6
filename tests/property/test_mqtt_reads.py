"""How packets are cut into reads changes nothing: neither the answers nor what is delivered.

Every sequence of packets is sent three times to a broker: one packet at a time, waiting until it
is dealt with; all in one read; and cut anywhere. The answers and what subscribers get are the same,
and the steps of each QoS 2 handshake come in the same order (MQTT5 4.3.3), also when a client
releases what is not answered yet, twice, what it never sent, or sends an id again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from onelog.broker import BrokerSettings, Durability, StreamConfig
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.packets import (
    Packet,
    Pingreq,
    Pingresp,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from onelog.protocols.mqtt.properties import Properties
from tests.support.brokers import FAST
from tests.support.mqtt import Node, serving

DEADLINE_S = 30.0
TOPICS = ("a", "b/c", "$delayed/3600/b/c", "$q/none")
Plan = list[tuple[Any, ...]]
Answers = dict[str, list[Any]]


def publishes() -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(
        st.just("publish"),
        st.sampled_from(TOPICS),
        st.sampled_from((0, 1, 1, 2)),
        st.booleans(),  # with a property: the kernel leaves it to Python
        st.booleans(),  # retained
    )


def subscribes() -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(
        st.just("subscribe"),
        st.sampled_from(("a", "b/c", "#", "$share/g/a", "$exclusive/a")),
        st.sampled_from((0, 1, 2)),
        st.sampled_from((0, 1, 2)),
    )


PLANS = st.lists(
    st.one_of(
        publishes(),
        publishes(),
        subscribes(),
        st.tuples(st.just("unsubscribe"), st.sampled_from(("a", "#"))),
        st.tuples(st.just("release"), st.sampled_from((0, 0, -1, -1))),  # the oldest, the newest
        st.tuples(st.just("release again")),
        st.tuples(st.just("publish again"), st.sampled_from(TOPICS[:2])),
        st.tuples(st.just("ping")),
    ),
    min_size=2,
    max_size=12,
)


def packets_of(plan: Plan, version: int) -> list[Packet]:
    """The packets of a plan; each has an id of its own, a payload tells which one it is."""
    packets: list[Packet] = []
    unreleased: list[int] = []
    last_id = 99  # of a handshake; nobody began this one
    for number, (kind, *about) in enumerate(plan, 1):
        if kind == "publish":
            topic, qos, explained, retain = about
            if version == 4 and topic == "$q/none":
                continue  # it is refused, and version 3 can only close
            properties = Properties(content_type="x") if explained else Properties()
            packet_id = number if qos else 0
            packets.append(
                Publish(
                    topic=topic,
                    payload=b"%d" % number,
                    qos=qos,
                    retain=retain,
                    packet_id=packet_id,
                    properties=properties,
                )
            )
            if qos == 2:
                unreleased.append(number)
                last_id = number
        elif kind == "subscribe":
            text, qos, handling = about
            handling = handling if version == 5 else 0
            row = Subscription(text, qos, retain_handling=handling)
            packets.append(Subscribe(number, (row,)))
        elif kind == "unsubscribe":
            packets.append(Unsubscribe(number, (about[0],)))
        elif kind == "ping":
            packets.append(Pingreq())
        elif kind == "release again":
            packets.append(Pubrel(last_id))
        elif kind == "publish again":
            again = Publish(topic=about[0], payload=b"%d" % number, qos=2, packet_id=last_id)
            packets.append(again)
        elif unreleased:
            last_id = unreleased.pop(about[0])
            packets.append(Pubrel(last_id))
    return packets


async def settled(node: Node) -> None:
    """Wait until no session reads the log: what was published is on its way to its subscribers."""
    sessions = [row.session for row in node.hub.connections if row.session is not None]
    async with asyncio.timeout(DEADLINE_S):
        while not all(row.output.live and not row.is_saving for row in sessions):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def agree(found: Answers, expected: Answers, *, may_leave_out: bool) -> bool:
    """Whether two runs gave the same.

    Who ends a subscription need not get what was not sent to it yet (MQTT5 3.10.4): such a client
    may get less, in the same order.
    """
    if not may_leave_out:
        return found == expected
    for name in found.keys() | expected.keys():
        rows, all_rows = found.get(name, []), expected.get(name, [])
        rest = iter(all_rows)
        if name.startswith("client gets"):
            if not all(row in rest for row in rows):
                return False
        elif rows != all_rows:
            return False
    return True


async def outcome(
    node: Node, chunks: list[bytes], pings: list[int], qos_of: dict[bytes, int]
) -> Answers:
    """What the client is answered and what both get, in the order that counts.

    That is the order of what was published with one QoS to one topic (MQTT5 4.6.0-6).

    A client that shares a subscription too gets two copies of a message, by two ways that wait for
    nothing of each other: the order of its copies does not count, nor does their QoS, because a
    message that waits in a share goes out with the QoS that the share has by then.
    `pings` says how many pings are in each chunk: each is waited for. One number: in all of them.
    """
    client, other = node.clients
    (connection,) = (c for c in node.hub.connections if c.session.client_id == "c")
    for number, chunk in enumerate(chunks, 1):
        client._writer.write(chunk)
        await client._writer.drain()
        if len(pings) > 1 or number == len(chunks):
            for _ in range(pings[number - 1] if len(pings) > 1 else pings[0]):
                await client.receive(Pingresp)
            await client.sync()
            await connection.wait_published()
            await settled(node)
            await client.sync()
            await other.sync()
    shares = b"$share" in b"".join(chunks)
    answers: dict[str, list[Any]] = defaultdict(list)
    for name, peer in (("client", client), ("other", other)):
        for packet in peer._arrived:
            if isinstance(packet, Publish):
                key = f"{name} gets {packet.topic} {qos_of[packet.payload]}"
                qos = -1 if shares else packet.qos
                answers[key].append((packet.payload, packet.retain, qos))
            elif isinstance(packet, Pubrec | Pubcomp):
                steps = answers[f"handshake {packet.packet_id}"]
                step = (type(packet).__name__, int(packet.reason))
                # One PUBREC answers all copies of a publish that came until it was sent.
                if steps[-1:] != [step] or isinstance(packet, Pubcomp):
                    steps.append(step)
            elif name == "client":
                code = getattr(packet, "reason", getattr(packet, "reasons", 0))
                answers[type(packet).__name__].append((getattr(packet, "packet_id", 0), code))
    for name, rows in answers.items():
        if name.startswith("client gets") and shares:
            rows.sort()
        elif "gets" not in name and "handshake" not in name:
            rows.sort()  # the order in which answers become due is the disk's
    return dict(answers)


async def compare(
    path: Path, plan: Plan, cuts: list[int], version: int, *, fsync: bool, kept: bool
) -> None:
    packets = packets_of(plan, version)
    if len(packets) < 2:
        return
    qos_of = {row.payload: row.qos for row in packets if isinstance(row, Publish)}
    pings = [int(isinstance(packet, Pingreq)) for packet in packets]
    pieces = [encode_packet(packet, version) for packet in packets]
    whole = b"".join(pieces)
    bounds = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    cut = [whole[a:b] for a, b in pairwise(bounds)]
    found = []
    for number, chunks in enumerate((pieces, [whole], cut)):
        durability = Durability.FSYNC if fsync else Durability.OS
        main = StreamConfig(name="main", captures=("#",), partitions=2, durability=durability)
        chosen = BrokerSettings(main=main, checkpoint_interval_s=FAST.checkpoint_interval_s)
        async with serving(path / str(number), settings=chosen) as node:
            await node.client("c", version=version, clean=not kept, expiry_s=60 * kept)
            other = await node.client("o")
            await other.subscribe("#", 2)
            waited = pings if number == 0 else [sum(pings)]
            found.append(await outcome(node, chunks, waited, qos_of))
    ends = any(isinstance(packet, Unsubscribe) for packet in packets)
    for run in found[1:]:
        if not agree(run, found[0], may_leave_out=ends):
            assert run == found[0]


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    plan=PLANS,
    cuts=st.lists(st.integers(0, 2000), max_size=6),
    version=st.sampled_from((4, 5)),
    fsync=st.booleans(),
    kept=st.booleans(),
)
@example(
    plan=[
        ("subscribe", "a", 0, 0),
        ("subscribe", "$share/g/a", 0, 0),
        ("publish", "a", 0, False, False),
        ("publish", "a", 0, False, False),
    ],
    cuts=[],
    version=4,
    fsync=False,
    kept=False,
)
@example(
    plan=[
        ("publish", "a", 2, False, False),
        ("release", -1),
        ("release again",),
        ("publish again", "b/c"),
        ("release again",),
    ],
    cuts=[],
    version=5,
    fsync=True,
    kept=True,
)
def test_any_cut_into_reads_gives_the_answers_of_one_packet_per_read(
    tmp_path_factory, plan, cuts, version, fsync, kept
):
    path = tmp_path_factory.mktemp("reads")
    asyncio.run(compare(path, plan, cuts, version, fsync=fsync, kept=kept))
