"""What the machine gives a broker: the compiled kernel, the loop, open files, memory, time."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from onelog.cli.doctor.findings import Finding
from onelog.kernel.condition import kernel_warning

OPEN_FILES_MIN: Final = 65_536
"""Each connection and each open segment needs a descriptor."""
MEMORY_BYTES_MIN: Final = 512 * 1024 * 1024
BORN_S: Final = 1_735_689_600
"""2025-01-01: a clock that stands before it was never set."""
_TIME_ERROR: Final = 5
"""adjtimex(2): the clock is not synchronised."""
_MIB: Final = 1024 * 1024


def look(environ: Mapping[str, str]) -> list[Finding]:
    """Everything that needs no configuration."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = memory_limit_bytes(Path("/sys/fs/cgroup"))
    return [
        judge_kernel(kernel_warning()),
        *judge_loop(has_uvloop=importlib.util.find_spec("uvloop") is not None),
        judge_open_files(hard),
        *([] if limit is None else [judge_memory(limit)]),
        judge_clock(time.time(), synchronised=is_clock_synchronised()),
        *judge_faults(environ.get("ONELOG_FAULTS", "")),
    ]


def judge_kernel(warning: str) -> Finding:
    """The compiled hot loops."""
    if warning:
        told, _, do = warning.partition("; ")
        return Finding("warning", "kernel", told, do or "unset ONELOG_PURE, then restart")
    running = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    return Finding("ok", "kernel", f"compiled from its sources; {running}")


def judge_loop(*, has_uvloop: bool) -> list[Finding]:
    """The event loop; nothing to say when it is the fast one."""
    if has_uvloop:
        return []
    told = "uvloop is not installed: the broker runs on the slower loop of asyncio"
    return [Finding("warning", "kernel", told, "install uvloop in the broker's environment")]


def judge_open_files(hard: int) -> Finding:
    """The hard limit; the process raises its soft limit by itself."""
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES_MIN:
        told = f"the hard limit of open files is {hard:,}: connections and segments need more"
        do = "raise it: LimitNOFILE= in a systemd unit, ulimits in compose, `ulimit -Hn` in a shell"
        return Finding("warning", "limits", told, do)
    shown = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    return Finding("ok", "limits", f"open files: up to {shown}")


def memory_limit_bytes(cgroup: Path) -> int | None:
    """How much memory a container has; None: there is no limit, or nobody says."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (cgroup / name).read_text().strip()
        except OSError:
            continue
        # The older file says "no limit" as a number that no machine has.
        return int(text) if text.isdigit() and int(text) < 2**60 else None
    return None


def judge_memory(limit: int) -> Finding:
    """What a container may use."""
    if limit < MEMORY_BYTES_MIN:
        told = f"the container has {limit // _MIB} MiB of memory: the system may kill the broker"
        return Finding("warning", "limits", told, f"give it {MEMORY_BYTES_MIN // _MIB} MiB or more")
    return Finding("ok", "limits", f"memory: {limit // _MIB:,} MiB for the container")


def is_clock_synchronised() -> bool | None:
    """Whether something keeps the clock right; None: the system does not say."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        # `struct timex` begins with what to change; zero changes nothing. 512 bytes are enough.
        state = libc.adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def judge_clock(now_s: float, *, synchronised: bool | None) -> Finding:
    """Retention, expiry and the time of every record come from the clock."""
    shown = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(now_s))
    if now_s < BORN_S:
        told = f"the clock stands at {shown}: records would have wrong times, and expire wrongly"
        return Finding("error", "clock", told, "set the clock, then start the broker")
    if synchronised is False:
        told = f"the clock ({shown}) is not synchronised: it drifts, and may jump when it is set"
        do = "run chrony or systemd-timesyncd; in a container, on its host"
        return Finding("warning", "clock", told, do)
    known = "" if synchronised is None else ", synchronised"
    return Finding("ok", "clock", f"{shown}{known}")


def judge_faults(armed: str) -> list[Finding]:
    """Faults that a test armed, and that no broker with real data should have."""
    if not armed:
        return []
    told = f"ONELOG_FAULTS={armed!r} makes the broker fail on purpose"
    return [Finding("error", "config", told, "unset it: it is for tests")]
