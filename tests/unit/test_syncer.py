"""The threads that wait for the disk: whoever raises over an answer, the others get theirs."""

from __future__ import annotations

import asyncio
from typing import Any

from onelog.base.clock import ManualClock
from onelog.log.syncer import ANSWER, Syncer
from onelog.observe import Troubles


async def test_who_raises_over_an_answer_is_a_trouble_and_the_others_are_told() -> None:
    troubles = Troubles(ManualClock())
    syncer = Syncer(1, troubles)
    loop = asyncio.get_running_loop()
    unseen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: unseen.append(context))

    def refuse(_result: object, _error: BaseException | None) -> None:
        raise ValueError("not taken")

    syncer.start(lambda: None, refuse)
    assert await syncer.run(lambda: 7) == 7
    assert troubles.count(ANSWER) == 1
    (row,) = troubles.rows()
    assert "refuse" in row.place
    assert "not taken" in row.error
    assert not unseen
    await syncer.close()
