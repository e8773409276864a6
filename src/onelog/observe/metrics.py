"""Prometheus metrics, read at scrape time from the plain integers that the floors keep anyway.

Rules: nothing in a hot path knows this module; a floor registers one callable that yields samples.
Report per stream, not per partition, and never with a label that a peer can choose freely. A scrape
pauses after each source, so that it never holds the loop for long. A source of many samples is an
async generator that pauses by itself. Nothing else pauses within a source: it may look at things
that change meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from prometheus_client import Metric, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from onelog.observe.troubles import Troubles

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
_SLICE_LINES: Final = 500
_PROCESS_S: Final = 1.0
"""How long the numbers of the process are shown before the system is asked again."""

SOURCE: Final = "metrics-source"
"""Incidents: a source of samples raised at a scrape."""


class Sample(NamedTuple):
    """One number of one metric at this moment."""

    name: str
    """As Prometheus shows it: a counter's ends in `_total`."""
    help: str
    kind: Literal["counter", "gauge"]
    value: float
    labels: tuple[tuple[str, str], ...] = ()


Pause = Callable[[], Awaitable[None]]
"""Lets others have their turn, at once or when it thinks fit."""


async def next_pass() -> None:
    """Let everything else run once."""
    await asyncio.sleep(0)


Source = Callable[[], Iterable[Sample] | AsyncIterable[Sample]]


class Registry:
    """Everything that a scrape shows."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self._sources: dict[str, Source] = {}
        self._process = ProcessCollector(registry=None)
        self._process_text: list[bytes] = []
        self._process_until = 0.0
        self.errors = 0
        """Sources that failed, over all scrapes."""

    def register(self, name: str, source: Source) -> None:
        """Call `source` at each scrape. A source of the same `name` is replaced."""
        self._sources[name] = source

    async def render(
        self, pause: Pause = next_pass, own: Mapping[str, Source] | None = None
    ) -> AsyncIterator[bytes]:
        """The exposition text in slices, with pauses; `own` are sources of this scrape alone."""
        for text in await self._of_process():
            yield text
        await pause()
        for lines in (await self._families(pause, own or {})).values():
            for start in range(0, len(lines), _SLICE_LINES):
                # The name of a stream may hold bytes that are not text.
                yield "".join(lines[start : start + _SLICE_LINES]).encode(errors="replace")
                await pause()

    async def _of_process(self) -> list[bytes]:
        """What the system knows of the process; it is asked once in `_PROCESS_S` at most.

        In a thread: it lists the open files, one by one. The thread holds the interpreter as it
        goes, so that scrapes do not ask more often.
        """
        if monotonic() >= self._process_until:
            self._process_until = monotonic() + _PROCESS_S
            self._process_text = await asyncio.to_thread(self._ask_process)
        return self._process_text

    def _ask_process(self) -> list[bytes]:
        return [generate_latest(_One(metric)) for metric in self._process.collect()]

    async def _families(self, pause: Pause, own: Mapping[str, Source]) -> dict[str, list[str]]:
        """The lines of each metric: the format wants them together, HELP and TYPE first."""
        families: dict[str, list[str]] = {}
        for name, source in [*self._sources.items(), *own.items()]:
            try:
                found = source()
                if isinstance(found, AsyncIterable):
                    async for sample in found:
                        _add(families, sample)
                else:
                    for sample in found:
                        _add(families, sample)
            except Exception as error:  # noqa: BLE001  one broken source must not blind a scrape
                self.errors += 1
                self._troubles.note(SOURCE, name, error)
            await pause()
        _add(
            families,
            Sample(
                "onelog_metrics_source_errors_total",
                "Metric sources that failed during a scrape.",
                "counter",
                self.errors,
            ),
        )
        return families


class _One(Collector):
    """The collector that prometheus_client calls."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _add(families: dict[str, list[str]], sample: Sample) -> None:
    name = sample.name
    if sample.kind == "counter" and not name.endswith("_total"):
        name += "_total"
    lines = families.get(name)
    if lines is None:
        about = sample.help.replace("\\", "\\\\").replace("\n", "\\n")
        lines = families[name] = [f"# HELP {name} {about}\n# TYPE {name} {sample.kind}\n"]
    labels = ",".join([f'{key}="{_escaped(text)}"' for key, text in sample.labels])
    where = f"{{{labels}}}" if labels else ""
    lines.append(f"{name}{where} {float(sample.value)!r}\n")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
