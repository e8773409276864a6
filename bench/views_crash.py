"""kill -9 in the middle of writers and views of every protocol; what each view has after it.

Rules: the run is the one of `make fault` (tests/support/mixed.py) with more messages. A message
counts as lost to a view when its writer was answered and the view does not have it in the end.
"""

from __future__ import annotations

from pathlib import Path

from bench.report import Row, row, say
from tests.conformance.mqtt_brokers import Onelog
from tests.support.mixed import SETTINGS, MixedRun

MESSAGES = 3000
"""At least so many are written before each kill."""


def kills(folder: Path, count: int) -> list[Row]:
    """So many crashes of one broker, then what was lost, and what came again."""
    home = folder / "crash"
    home.mkdir()
    server = Onelog(home, *SETTINGS).start()
    run = MixedRun(server)
    try:
        run.prepare()
        for number in range(count):
            run.begin(write=True)
            run.written(MESSAGES)
            run.kill()
            say(f"kill -9 number {number + 1}, {len(run.history.known):,} messages acknowledged")
        run.catch_up()
    finally:
        server.kill()
    name = f"{count} kill -9, {len(run.history.known):,} messages, {len(run.views)} views"
    lost = sum(run.lacking().values())
    back = sum(not words.startswith("loss") for words in run.findings())
    return [
        row(f"{name}: acknowledged and not seen by a view", lost, "messages", 0, low=True),
        row(
            f"{name}: promises broken otherwise: order, phantoms, repeats",
            back,
            "times",
            0,
            low=True,
        ),
    ]
