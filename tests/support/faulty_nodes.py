"""A node whose disk and clock fail as a test says, while it runs.

Rules:
- The test writes a plan into the node's folder and sends a signal; a thread of the node reads it,
  and says which plan is in force. A plan that is there at the start is in force from the start.
- A point that a plan names counts how often it was passed, so that a test can tell that the fault
  was there. While any point is armed, nothing is synced by the threads of the kernel, which pass no
  point (`onelog/base/faults.py`); the point `ARMED` does nothing else. `WALL` is passed when the
  broker asks for the time while that is wrong.
- What a sync has covered is noted. `lose_page_cache` takes everything else away from the files of a
  node that was killed, as a loss of power does.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from onelog.base import faults
from tests.support.forks import onelog

SIGNAL = signal.SIGUSR1
PLAN, IN_FORCE, SYNCED = "plan.json", "plan.in-force", "synced"
ARMED, WALL = "test.armed", "test.wall"
ROOM = ("segment.write", "segment.allocate", "segment.create", "segment.checkpoint")
"""The points that a full disk fails."""


class Plan(msgspec.Struct, frozen=True):
    """What is wrong with a node. Nothing: it is whole."""

    fails: dict[str, str] = {}
    """Point → the name of its error."""
    slow_s: dict[str, float] = {}
    wall_shift_s: float = 0.0
    boot_id: str = ""
    """What the machine says of its start; empty: the truth."""
    copies_only: bool = False
    """The points fail only in what the node copies from leaders."""
    is_armed: bool = False
    """Every sync passes its point, also where nothing fails."""
    serial: int = 0


def full_disk(*, copies_only: bool = False) -> Plan:
    """A disk without room."""
    return Plan(fails=dict.fromkeys(ROOM, "ENOSPC"), copies_only=copies_only)


# -- in the node


def onelog_with_faults(folder: str, *arguments: str) -> None:
    """The command, with a thread that waits for plans."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})
    nemesis = _Nemesis(Path(folder))
    nemesis.begin()
    onelog(*arguments)


class _Nemesis:
    """Brings the plans of a node into force."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shift_ns = 0
        self._is_copying = False
        self._wall = self._counter(WALL)

    def _counter(self, name: str) -> int:
        return os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def begin(self) -> None:
        """Before anything of the node runs."""
        self._take_clock()
        self._take_syncs()
        self._take_copies()
        if (self._folder / PLAN).exists():
            self._apply()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            signal.sigwait({SIGNAL})
            self._apply()

    def _apply(self) -> None:
        plan = msgspec.json.decode((self._folder / PLAN).read_bytes(), type=Plan)
        if plan.boot_id:
            (self._folder / "boot_id").write_text(plan.boot_id)
            path = self._folder / "boot_id"
            mock.patch("onelog.cluster.identity._BOOT_ID", path).start()
        self._shift_ns = int(plan.wall_shift_s * 1e9)
        wanted = {ARMED: self._point(ARMED, plan)} if plan.is_armed else {}
        wanted |= {name: self._point(name, plan) for name in {*plan.fails, *plan.slow_s}}
        for name, action in wanted.items():
            faults.arm(name, action)
        for name in set(faults.armed) - set(wanted):
            faults.disarm(name)
        (self._folder / IN_FORCE).write_text(str(plan.serial))

    def _point(self, name: str, plan: Plan) -> faults.Action:
        counter = self._counter(name)
        code = getattr(errno, plan.fails[name]) if name in plan.fails else 0
        slow_s = plan.slow_s.get(name, 0.0)

        def action() -> None:
            if plan.copies_only and not self._is_copying:
                return
            os.write(counter, b".")
            time.sleep(slow_s)
            if code:
                raise OSError(code, os.strerror(code))

        return action

    def _take_clock(self) -> None:
        """The wall clock jumps; the kernel reads only the machine's own clock by itself."""
        import onelog.app  # noqa: PLC0415 - in the node only
        import onelog.cluster_assembly  # noqa: PLC0415
        from onelog.base.clock import SystemClock  # noqa: PLC0415

        class JumpingClock(SystemClock):
            __slots__ = ()

        real = time.time_ns

        def time_ns() -> int:
            if self._shift_ns:
                os.write(self._wall, b".")
            return real() + self._shift_ns

        mock.patch("time.time_ns", time_ns).start()
        for module in (onelog.app, onelog.cluster_assembly):
            mock.patch.object(module, "SystemClock", JumpingClock).start()

    def _take_syncs(self) -> None:
        from onelog.storage.segment.segment import Segment  # noqa: PLC0415

        place = os.open(self._folder / SYNCED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        real = Segment.note_synced

        def note_synced(segment: Segment, size: int) -> None:
            os.write(place, f"{size} {segment.stem}\n".encode())
            real(segment, size)

        mock.patch.object(Segment, "note_synced", note_synced).start()

    def _take_copies(self) -> None:
        from onelog.log.replica import Replica  # noqa: PLC0415

        real = Replica.append_copy

        def append_copy(*arguments: Any) -> Any:
            self._is_copying = True
            try:
                return real(*arguments)
            finally:
                self._is_copying = False

        mock.patch.object(Replica, "append_copy", append_copy).start()


# -- in the test


def write_plan(folder: Path, plan: Plan) -> None:
    """Give a node a plan, whole."""
    part = folder / "plan.part"
    part.write_bytes(msgspec.json.encode(plan))
    part.replace(folder / PLAN)


def in_force(folder: Path) -> int:
    """Which plan a node has."""
    file = folder / IN_FORCE
    return int(file.read_text() or 0) if file.exists() else 0


def hits(folder: Path, point: str) -> int:
    """How often a node passed a point that a plan named."""
    file = folder / point
    return file.stat().st_size if file.exists() else 0


def lose_page_cache(folder: Path, topic: str) -> int:
    """Cut all logs of a node that was killed to what was synced; how many bytes of records the
    stream of a topic lost by that."""
    synced: dict[str, int] = {}
    for row in (folder / SYNCED).read_text().splitlines():
        size, _, stem = row.partition(" ")
        synced[str(Path(stem).resolve())] = int(size)
    root, lost = folder / "data" / "segment", 0
    for path in root.rglob("*.log"):
        durable = synced.get(str(path.resolve().with_suffix("")), 0)
        if path.relative_to(root).parts[0].rpartition("-")[0] == topic:
            lost += len(path.read_bytes()[durable:].rstrip(b"\0"))
        os.truncate(path, min(durable, path.stat().st_size))
    return lost
