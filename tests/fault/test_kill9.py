"""Is everything that a broker acknowledged there after kill -9, whenever it comes? (I4, I5)"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from onelog.broker import LOCAL, QueueSettings
from tests.fault.witness import PROMISES, Place, Witness, Worker
from tests.fault.worker import contents, open_loaded

KILLED = -9
DIED_AT_POINT = 137


def run_round(data: Path, witness: Witness, number: int, chance: random.Random) -> None:
    """One worker's life: it says what it found, loads the broker, and is killed."""
    worker = Worker(data, number, chance.randrange(1 << 30))
    if chance.random() < 0.2:
        delay_s = chance.random() * 0.6  # also while it starts, recovers or tells
    else:
        worker.wait_for("ready")
        delay_s = chance.random() ** 2
    time.sleep(delay_s)  # not to wait for anything: the moment of the kill is the input
    worker.kill()
    assert worker.wait() == KILLED, worker.complaint()
    witness.take(worker.frames)


async def check_rest(data: Path, witness: Witness) -> None:
    """Read what the rounds left: all records, and for every cursor what it has not settled yet."""
    broker = await open_loaded(data)
    everything: dict[str, set[Place]] = {"fs": set(), "os": set()}
    frames: list[list[object]] = []
    for stream in map(broker.streams.get, ("fs", "os", "kc", "tr", "kv", "ko")):
        for partition in stream.partitions:
            rows = contents(partition)
            frames.append(
                ["holds", stream.name, int(partition.id), partition.start_offset,
                 partition.end_offset, rows]
            )  # fmt: skip
            if stream.name in everything:
                everything[stream.name] |= {(stream.name, int(partition.id), r[0]) for r in rows}
    frames.append(["ready", [stream.name for stream in broker.streams.streams()]])
    witness.take(frames)
    witness.history.prove(PROMISES)
    settings = QueueSettings(in_flight_max=10_000_000)
    queue = await broker.cursors.open_queue(
        "queue", ["os/#"], settings=settings, durable=False, principal=LOCAL
    )
    left = [delivery.record for delivery in queue.acquire("c", 10_000_000)]
    while queue.reading.is_behind():
        left += [delivery.record for delivery in queue.acquire("c", 10_000_000)]
    check_once(witness, "queue", left, everything["os"])
    session = await broker.cursors.open_session(
        "session", ["fs/#"], window=1 << 30, durable=False, principal=LOCAL
    )
    unsettled = [row for row in session.redeliver() if row.record is not None]
    while session.reading.is_behind():
        fetched = session.fetch(1000)
        unsettled += fetched
        for delivery in fetched:
            session.acknowledge(delivery.packet_id)
    check_once(witness, "session", [row.record for row in unsettled], everything["fs"])
    await broker.close()


def check_once(witness: Witness, cursor: str, left: list, everything: set[Place]) -> None:
    """What was not settled comes again, each record once; what was settled does not."""
    places = [(record.stream, record.partition, int(record.offset)) for record in left]
    assert len(places) == len(set(places)), f"{cursor}: a record comes twice"
    settled = {place for place in witness.settled[cursor] if place[0]}
    assert not settled & set(places), f"{cursor}: settled records are back"
    assert settled | set(places) <= everything
    # A settlement may be kept although the kill came before its answer.
    lost = sorted(everything - settled - set(places) - witness.settling[cursor])
    assert not lost, f"{cursor}: never delivered: {lost[:5]}"


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(5, marks=pytest.mark.fault),
        pytest.param(50, marks=pytest.mark.fault_long),
    ],
)
async def test_every_acknowledged_record_survives_kill_9_once_and_in_order(
    tmp_path: Path, rounds: int
):
    """I4, I5: records, offsets, streams and cursors are never before what was acknowledged."""
    seed = int(os.environ.get("ONELOG_SEED") or random.randrange(1 << 30))
    print(f"ONELOG_SEED={seed}")  # noqa: T201 - shown when it fails
    chance = random.Random(seed)
    witness = Witness()
    for number in range(rounds):
        run_round(tmp_path / "data", witness, number, chance)
    published = sum(map(len, witness.acknowledged.values()))
    assert published > rounds * 20, "there was no load to speak of"
    assert witness.settled["queue"], "the queue settled nothing"
    assert witness.settled["session"], "the session settled nothing"
    await check_rest(tmp_path / "data", witness)
    await check_rest(tmp_path / "data", witness)  # also after a clean stop


POINTS = (
    "segment.create=exit:3",
    "segment.write=exit:200",
    "segment.allocate=exit:2",
    "segment.roll=exit:2",
    "segment.fsync=exit:40",
    "segment.checkpoint=exit:5",
    "segment.checkpoint.written=exit:5",
    "segment.state=exit:1",
    "segment.unlink=exit:1",
    "segment.swap=exit:0",
    "segment.swap=exit:2",
    "segment.swap=exit:5",
    "kv.write=exit:50",
    "kv.sync=exit:20",
    "metadata.commit=exit:2",
)


@pytest.mark.fault
@pytest.mark.parametrize("point", POINTS)
def test_a_broker_that_dies_at_a_fault_point_keeps_what_it_acknowledged(tmp_path: Path, point: str):
    """I4: the points lie between the system calls where a crash is hardest to get right."""
    data, witness = tmp_path / "data", Witness()
    worker = Worker(data, 0, 1, point)
    assert worker.wait() == DIED_AT_POINT, f"{point} was not reached: {worker.complaint()}"
    assert worker.count("ready")
    witness.take(worker.frames)
    check_next_start(data, witness)


@pytest.mark.fault
@pytest.mark.parametrize("point", ["segment.checkpoint", "segment.checkpoint.written"])
def test_a_broker_that_dies_while_it_recovers_recovers_the_next_time(tmp_path: Path, point: str):
    """I4: a recovery that was cut short is done again, and has lost nothing."""
    data, witness = tmp_path / "data", Witness()
    chance = random.Random(2)
    worker = Worker(data, 0, 1)
    worker.wait_for("published", 300)
    worker.kill()
    witness.take(worker.frames)
    for after in (0, 1, 0):
        plan = f"{point}=exit:{after}"
        worker = Worker(data, 1, chance.randrange(1000), plan, at_open=True)
        assert worker.wait() == DIED_AT_POINT, worker.complaint()
        assert not worker.count("ready")
    check_next_start(data, witness)


def check_next_start(data: Path, witness: Witness) -> None:
    worker = Worker(data, 2, 2)
    worker.wait_for("published", 20)
    worker.kill()
    witness.take(worker.frames)
