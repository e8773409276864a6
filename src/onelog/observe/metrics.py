"""Prometheus metrics, read at scrape time from the plain integers that the floors keep anyway.

Rules: nothing in a hot path knows this module; a floor registers one callable that yields samples.
Report per stream, not per partition, and never with a label that a peer can choose freely. The
text is made in slices, so that a scrape never holds the loop for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from prometheus_client import Metric, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from onelog.observe.troubles import Troubles

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
_SLICE_SAMPLES: Final = 500

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


Source = Callable[[], Iterable[Sample]]


class Registry:
    """Everything that a scrape shows."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self._sources: dict[str, Source] = {}
        self._process = ProcessCollector(registry=None)
        self.errors = 0
        """Sources that failed, over all scrapes."""

    def register(self, name: str, source: Source) -> None:
        """Call `source` at each scrape. A source of the same `name` is replaced."""
        self._sources[name] = source

    async def render(self) -> AsyncIterator[bytes]:
        """The exposition text in slices; the loop runs between them."""
        for metric in self._process.collect():
            yield generate_latest(_One(metric))
        for metrics in list(self._families().values()):
            for index, metric in enumerate(_slices(metrics)):
                text = generate_latest(_One(metric))
                # The format wants HELP and TYPE once per metric, before its first sample.
                yield text if index == 0 else _without_comments(text)
                await asyncio.sleep(0)

    def _families(self) -> dict[str, Metric]:
        families: dict[str, Metric] = {}
        for name, source in self._sources.items():
            try:
                for sample in source():
                    _add(families, sample)
            except Exception as error:  # noqa: BLE001  one broken source must not blind a scrape
                self.errors += 1
                self._troubles.note(SOURCE, name, error)
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


def _add(families: dict[str, Metric], sample: Sample) -> None:
    family = sample.name.removesuffix("_total") if sample.kind == "counter" else sample.name
    metric = families.get(family)
    if metric is None:
        metric = families[family] = Metric(family, sample.help, sample.kind)
    name = f"{family}_total" if sample.kind == "counter" else family
    metric.add_sample(name, dict(sample.labels), sample.value)


def _slices(metric: Metric) -> Iterator[Metric]:
    for start in range(0, len(metric.samples), _SLICE_SAMPLES):
        part = Metric(metric.name, metric.documentation, metric.type)
        part.samples = metric.samples[start : start + _SLICE_SAMPLES]
        yield part


def _without_comments(text: bytes) -> bytes:
    return b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))
