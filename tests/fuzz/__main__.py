"""Runs fuzz targets: `python -m tests.fuzz [target ...] [--seconds 600] [--seed 1]`.

`--replay file` tries an input again that was kept as a finding.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from tests.fuzz.connections import TARGETS, Tally, fuzz, replay
from tests.fuzz.decoders import DECODERS, fuzz_decoder


def main() -> None:
    """Each target in turn; ends at the first finding of each, and fails if there was one."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", default=[*TARGETS, *DECODERS])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--replay", type=Path)
    chosen = parser.parse_args()
    failed = False
    for name in chosen.targets:
        started = time.monotonic()
        try:
            if chosen.replay is not None:
                reads = msgspec.msgpack.decode(chosen.replay.read_bytes())
                with tempfile.TemporaryDirectory() as folder:
                    asyncio.run(replay(name, Path(folder), [reads]))
                words = "replayed"
            elif name in DECODERS:
                words = str(fuzz_decoder(name, chosen.seconds, chosen.seed)) + " inputs"
            else:
                tally: Tally = asyncio.run(fuzz(name, chosen.seconds, chosen.seed))
                words = f"{tally.inputs} inputs, {len(tally.shapes)} answers, {tally.lives} lives"
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            failed = True
            words = f"FINDING, seed {chosen.seed}\n{error}"
        sys.stdout.write(f"{name}: {words}, {time.monotonic() - started:.0f} s\n")
        sys.stdout.flush()
    sys.exit(failed)


if __name__ == "__main__":
    main()
