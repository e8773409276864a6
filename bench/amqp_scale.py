"""Bars without a peer: a hundred queues bound to one exchange, and a queue with a long backlog.

Rules: fan-out publishes to a fanout exchange without consumers, one queue and a hundred in turns,
each with data of its own; by how much the files grew is counted after the broker has closed them.
The backlog is read from a queue that holds it all and, as the other side, from one that holds
little, in turns; neither may run out while it is timed.
"""

from __future__ import annotations

from pathlib import Path

from bench.amqp_load import Run, Target, load, onelog
from bench.report import Row, median, row, say

FAN = 100
FAN_EXCHANGE, FAN_QUEUE = "bfan", "b3.q0"
"""Names that `amqpload -m 3` gives."""
BACKLOG_QUEUE, KEEP = "b1.q0", ("-m", "17")
SHORT_BACKLOG = 2_000_000
READ_S, FILL_S, PROBE_S = 0.4, 30.0, 0.5
BYTES_BAR, PUBLISH_BAR = 1.1, 0.8
RSS_BAR_MB, SAME_SPEED_BAR = 200, 0.9


def bytes_below(folder: Path) -> int:
    """The size of all files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def bind(target: Target, queues: int) -> None:
    """All but one queue on the exchange; the load generator makes that one."""
    with target.channel() as channel:
        channel.exchange_declare(FAN_EXCHANGE, "fanout", durable=True)
        for number in range(1, queues):
            channel.queue_declare(f"fan{number}", durable=True)
            channel.queue_bind(f"fan{number}", FAN_EXCHANGE)


def publish(folder: Path, queues: int, measured_s: float) -> tuple[float, float]:
    """Messages confirmed a second, and bytes by which each made the files grow."""
    with onelog(folder) as target:
        bind(target, queues)
    empty = bytes_below(folder)
    with onelog(folder) as target:
        run = load(target, "-m", "3", "-S", "0", "-I", "1000", measured_s=measured_s)
        held = target.messages(FAN_QUEUE)
        assert queues == 1 or target.messages(f"fan{queues - 1}") == held, "a queue lacks messages"
    return run["ack_s"], (bytes_below(folder) - empty) / held


def fan_out(folder: Path, rounds: int, measured_s: float) -> list[Row]:
    """A hundred bound queues beside one."""
    ones, manys = [], []
    for number in range(rounds):
        ones.append(publish(folder / f"one{number}", 1, measured_s))
        manys.append(publish(folder / f"many{number}", FAN, measured_s))
    one_rate, one_bytes = (median(values) for values in zip(*ones, strict=True))
    rate, size = (median(values) for values in zip(*manys, strict=True))
    say(f"{FAN} queues: {rate:,.0f} msg/s, {size:.0f} B; one: {one_rate:,.0f}, {one_bytes:.0f} B")
    name = f"fan-out to {FAN} queues"
    said = ("one queue, B per message", one_bytes)
    spread = row(f"{name}: disk", size / one_bytes, "ratio", BYTES_BAR, low=True, peer=said)
    said = ("one queue, msg/s", one_rate)
    return [spread, row(f"{name}: publish", rate / one_rate, "ratio", PUBLISH_BAR, peer=said)]


def fill(target: Target, count: int) -> None:
    """Publish until the queue holds so many."""
    rate = 0.0
    while (held := target.messages(BACKLOG_QUEUE)) < count:
        enough_s = min(max((count - held) / rate, PROBE_S), FILL_S) if rate else PROBE_S
        run = load(target, *KEEP, "-S", "0", "-I", "1000", measured_s=enough_s, warm_s=0)
        assert run["ack_s"], f"the backlog could not be written after {held} messages"
        rate = run["ack_s"]
        say(f"backlog: {held:,} and {rate:,.0f} msg/s more")


def read(target: Target) -> Run:
    """One consumer for a while; the load needs a publisher, which sends one message."""
    run = load(target, *KEEP, "-r", "0.001", measured_s=READ_S, warm_s=0.1, again=True)
    left = target.messages(BACKLOG_QUEUE)
    assert left > 1, "the backlog ran out while its reading was timed"
    say(f"backlog: {run['recv_s']:,.0f} msg/s read, {left:,} left")
    return run


def backlog(folder: Path, count: int, rounds: int) -> list[Row]:
    """Memory and speed with a long backlog, beside those with a short one."""
    short, long = [], []
    with onelog(folder / "long") as full, onelog(folder / "short") as other:
        fill(full, count)
        resident = [full.memory_mb("VmRSS")]
        for _round in range(rounds):
            fill(other, SHORT_BACKLOG)
            short.append(read(other)["recv_s"])
            long.append(read(full)["recv_s"])
            resident.append(full.memory_mb("VmRSS"))
        highest = full.memory_mb("VmHWM")
        own = full.memory_mb("RssAnon")
    name = f"backlog of {count:,}"
    said = (f"backlog of {SHORT_BACKLOG:,}, msg/s", median(short))
    speed = median(long) / median(short)
    return [
        row(f"{name}: RSS", max(resident), "MB", RSS_BAR_MB, low=True),
        row(f"{name}: highest RSS of the run", highest, "MB"),
        row(f"{name}: RSS without mapped files", own, "MB"),
        row(f"{name}: consume", speed, "ratio", SAME_SPEED_BAR, peer=said),
    ]
