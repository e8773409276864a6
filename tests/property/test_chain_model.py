"""The chain under late, doubled and lost writes, kill -9, several starters, checkpoints and
deletions: no answered record is lost, none is there twice, none is out of order.

`ONELOG_CHAIN_HISTORIES` says how many histories run; a failure names its seed.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

from onelog.base.errors import ColdDamaged
from onelog.objects import names
from onelog.objects.chain_opening import ChainOpening
from onelog.objects.chain_requests import ChainRequest, GetObjects
from onelog.objects.checkpoint import ChainPlace
from tests.support.chain_model import History, ModelState

HISTORIES = int(os.environ.get("ONELOG_CHAIN_HISTORIES", "3000"))


def test_no_answered_record_is_lost_or_there_twice_or_out_of_order():
    answered = 0
    for seed in range(HISTORIES):
        history = History(seed)
        try:
            history.check(history.run())
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        answered += len(history.answered)
    assert answered > HISTORIES  # the histories are not empty ones


class ListsOnce(ChainOpening[ModelState]):
    """Believes the first list of checkpoints: a deleted object is a hole."""

    def _ended(self, epoch: int) -> Generator[ChainRequest, Any, ModelState | None]:
        seq = yield from self._newest_checkpoint(epoch)
        found = super()._newest_checkpoint

        def once(_epoch: int) -> Generator[ChainRequest, Any, int]:
            yield from ()
            return seq

        self._newest_checkpoint = once  # type: ignore[method-assign]
        try:
            return (yield from super()._ended(epoch))
        finally:
            self._newest_checkpoint = found  # type: ignore[method-assign]


class NoLastLook(ChainOpening[ModelState]):
    """Does not look at its end whether a newer epoch began."""

    def _check_epoch(self) -> Generator[ChainRequest, Any, None]:
        yield from ()


class LooksForBaseFirst(NoLastLook):
    """Looks whether an epoch wrote before it is fenced."""

    def _ended(self, epoch: int) -> Generator[ChainRequest, Any, ModelState | None]:
        (base,) = yield GetObjects((names.chain_base(self._name, epoch),))
        if base is None:
            hole = yield from self._fence(epoch, 0)
            self._fences.add(ChainPlace(epoch, hole))
            return None
        return (yield from super()._ended(epoch))


class NoFence(ChainOpening[ModelState]):
    """Reads up to the first hole and closes nothing."""

    def _fence(self, epoch: int, after: int) -> Generator[ChainRequest, Any, int]:
        seq = after + 1
        while True:
            (data,) = yield GetObjects((names.chain_wal(self._name, epoch, seq),))
            if data is None:
                return seq
            seq += 1


@pytest.mark.parametrize("broken", [ListsOnce, NoLastLook, LooksForBaseFirst, NoFence])
def test_the_model_finds_a_start_that_leaves_out_a_rule(broken):
    for seed in range(5_000):
        history = History(seed, broken)
        try:
            history.check(history.run())
        except (AssertionError, ColdDamaged):
            return
    raise AssertionError(f"{broken.__name__} loses nothing: the model sees too little")
