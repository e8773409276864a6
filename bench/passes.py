"""How long passes of a broker's event loop hold the processor (`passclock.c`).

Rules: time is that of the loop's own thread, so other processes do not count. A message that comes
at a random moment waits longer than x with the probability Σ(pass - x)⁺ / time. A pass in which the
thread waited for something (a lock, the system) is counted by itself.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.report import ROOT

LIBRARY = ROOT / "build" / "passclock.so"
HEAD = struct.Struct("<QQ")
ROW = np.dtype([("end_ns", "<u8"), ("cpu_ns", "<u4"), ("wall_ns", "<u4"), ("waits", "<u8")])


class Passes(NamedTuple):
    """The passes of some time."""

    passes: int
    busy: float
    """Share of the time in which the loop had the processor."""
    wait_us: float
    """One message in a hundred waits for longer."""
    longest_us: float
    waited: int
    """Passes in which the thread waited."""


def build(library: Path = LIBRARY) -> None:
    """Compile the library."""
    library.parent.mkdir(exist_ok=True)
    source = ROOT / "bench" / "passclock.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)


def environment(path: Path, library: Path = LIBRARY) -> dict[str, str]:
    """What a broker needs so that its passes are noted in a file that does not exist yet."""
    return {"LD_PRELOAD": str(library), "PASSCLOCK": str(path)}


def between(path: Path, begin_ns: int, end_ns: int, share: float = 0.01) -> Passes:
    """The passes that ended between two times of the monotonic clock."""
    with path.open("rb") as file:
        written, rows = HEAD.unpack(file.read(HEAD.size))
        noted = np.fromfile(file, dtype=ROW, count=min(written, rows))
    found = noted[(noted["end_ns"] >= begin_ns) & (noted["end_ns"] < end_ns)]
    if not len(found):
        raise SystemExit(f"{path} has no pass of this time")
    cpu_ns = found["cpu_ns"].astype(np.float64)
    time_ns = float(end_ns - begin_ns)
    low, high = 0.0, float(cpu_ns.max())
    for _ in range(40):
        middle = (low + high) / 2
        if np.clip(cpu_ns - middle, 0, None).sum() / time_ns > share:
            low = middle
        else:
            high = middle
    return Passes(
        passes=len(found),
        busy=float(cpu_ns.sum()) / time_ns,
        wait_us=high / 1000,
        longest_us=float(cpu_ns.max()) / 1000,
        waited=int((found["waits"] > 0).sum()),
    )
