"""What an operator sees of a chain and its upkeep: troubles, readiness and metrics.

Rules: a store that fails is a trouble that blocks readiness after `AWAY_S`; a chain that another
broker took over blocks it for good, as soon as a write or a look of the idle chain finds it. All
methods of `ChainWatch` run on the loop, except `changed`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final, Literal

from onelog.base.errors import Closed
from onelog.objects.chain import Chain
from onelog.observe.metrics import Sample
from onelog.observe.troubles import Troubles
from onelog.storage.object.engine import ObjectEngine
from onelog.storage.object.upkeep import ObjectUpkeep

AWAY_S: Final = 10.0
AWAY: Final = "object-store-away"
ENDED: Final = "object-chain-ended"
UPKEEP: Final = "object-upkeep"
"""Settling, joining or deleting failed, and is tried again."""


class ChainWatch:
    """Turns what happens to a chain into troubles."""

    def __init__(
        self,
        chain: Chain,
        place: str,
        troubles: Troubles,
        loop: asyncio.AbstractEventLoop,
        upkeep: ObjectUpkeep | None = None,
    ) -> None:
        self._chain = chain
        self._upkeep = upkeep
        self._place = place
        self._troubles = troubles
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        chain.on_trouble = self.changed

    def changed(self) -> None:
        """The chain began or ceased to fail, or ended. Any thread may call this."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        chain = self._chain
        if chain.error is not None:
            self._troubles.clear(AWAY, self._place)
            if not isinstance(chain.error, Closed):
                self._troubles.stand(ENDED, self._place, chain.error, blocks=True)
            return
        failure = self._upkeep.last_error if self._upkeep is not None else None
        if failure is None:
            self._troubles.clear(UPKEEP, self._place)
        else:
            self._troubles.stand(UPKEEP, self._place, str(failure), blocks=False)
        away_s = chain.away_s
        if chain.failing_since is None:
            self._troubles.clear(AWAY, self._place)
        elif away_s >= AWAY_S:
            error = f"for {away_s:.0f} s the store has not answered: {chain.last_failure}"
            self._troubles.stand(AWAY, self._place, error, blocks=True)
        else:
            self._timer = self._loop.call_later(AWAY_S - away_s + 0.01, self._look)


def chain_samples(chain: Chain, name: str) -> Iterable[Sample]:
    """Metrics of a chain."""
    figures, labels = chain.figures, (("chain", name),)
    rows: list[tuple[str, str, float]] = [
        ("bulks_total", "Objects that the chain wrote.", figures.bulks),
        ("bytes_total", "Bytes of them.", figures.bytes_written),
        ("put_seconds_total", "Time from leaving to being in the store.", figures.put_s),
        ("put_seconds_max", "The longest of these times.", figures.put_s_max),
        ("retries_total", "Writes that were tried again.", figures.retries),
        ("lag_seconds", "Age of the oldest write that is on its way.", chain.oldest_s),
        ("away_seconds", "How long the store has failed; 0: it works.", chain.away_s),
        ("linger_seconds", "How long a write waits for more.", chain.line.linger_s),
        ("epoch", "How often the chain was opened.", chain.line.epoch),
    ]
    for key, about, value in rows:
        yield _sample(f"onelog_chain_{key}", about, value, labels)


def engine_samples(engine: ObjectEngine) -> Iterable[Sample]:
    """Metrics of the engine and its chain."""
    core, upkeep = engine.core, engine.upkeep
    yield from chain_samples(core.chain, core.chain.name)
    rows: list[tuple[str, str, float]] = [
        ("unsettled_bytes", "Bytes of batches that are in no data object.", core.unsettled_bytes),
        ("settled_bytes_total", "Bytes that became data objects.", upkeep.settling.settled_bytes),
        ("joined_rows_total", "Rows that went by joining.", upkeep.settling.joined_rows),
        ("checkpoints_total", "Checkpoints of the chain.", upkeep.checkpoints),
        ("deleted_total", "Data objects that were deleted.", upkeep.deleted),
        ("doomed", "Data objects that wait for their deletion.", len(core.image.doomed)),
        ("refused_total", "Appends that found the buffer full.", core.refused),
        ("opening_seconds", "How long opening the chain took.", engine.opening_s),
    ]
    for key, about, value in rows:
        yield _sample(f"onelog_object_{key}", about, value)


def _sample(
    name: str, about: str, value: float, labels: tuple[tuple[str, str], ...] = ()
) -> Sample:
    kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
    return Sample(name, about, kind, value, labels)
