"""Limits how many of the available records one micro-batch takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from onelog.kafka_client import Part
from onelog.spark.source.options import Limits


def share_out(sizes: Mapping[Part, int], most: int) -> dict[Part, int]:
    """`most` offsets of all, each partition in proportion to what it has."""
    total = sum(sizes.values())
    if total <= most:
        return dict(sizes)
    found = {part: size * most // total for part, size in sizes.items()}
    left = most - sum(found.values())
    # The rest goes to those that were cut most, so that none starves.
    order = sorted(sizes, key=lambda part: (-(sizes[part] * most % total), part))
    for part in order[:left]:
        found[part] += 1
    return found


class Admission:
    """Decides how far the next micro-batch goes."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._last = clock()

    def admit(
        self, begins: Mapping[Part, int], ends: Mapping[Part, int],
        weigh: Callable[[Part, int, int], float], *, at_once: bool,
    ) -> dict[Part, int]:  # fmt: skip
        """Where the next micro-batch ends; where it begins when more is to be waited for.

        `at_once`: what there is is all that will come, so that nothing is waited for.
        """
        limits, now = self._limits, self._clock()
        sizes = {part: max(end - begins[part], 0) for part, end in ends.items()}
        total = sum(sizes.values())
        waits = limits.offsets_min is not None and total < limits.offsets_min and not at_once
        if not total or (waits and now - self._last < limits.delay_s):
            return {part: begins[part] for part in ends}
        self._last = now
        if limits.offsets_max is not None:
            sizes = share_out(sizes, limits.offsets_max)
        if limits.bytes_max is not None:
            weight = sum(weigh(part, begins[part], size) for part, size in sizes.items() if size)
            if weight > limits.bytes_max:
                most = int(sum(sizes.values()) * limits.bytes_max / weight)
                sizes = share_out(sizes, max(most, 1))
        return {part: begins[part] + size for part, size in sizes.items()}
