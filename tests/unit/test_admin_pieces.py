"""No question holds the loop, however much there is; many logins wait and are not refused."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from time import thread_time

import pytest

from onelog.admin.api.login_queue import AT_ONCE, LoginQueue
from onelog.admin.api.survey import TRIE_TOPICS
from onelog.base.errors import QuotaExceeded
from onelog.broker import LOCAL, Message
from onelog.pipelines.progress import Progress
from onelog.pipelines.state import State, Status
from onelog.serving.pipelines import pipeline_rows
from tests.support.admin import admin_api

TOPICS = 1_000_000
HELD_S = 0.020
"""How long the loop may be held."""


@pytest.fixture
async def api(tmp_path):
    async with admin_api(tmp_path) as found:
        yield found


class Pulse:
    """Notes how long the loop is held at a time, by the time of its processor: a machine that has
    other work does not count."""

    def __init__(self) -> None:
        self.held: list[float] = []

    @contextlib.asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        gc.disable()  # a server keeps the collector away from what lasts (`app.py`)
        loop, last = asyncio.get_running_loop(), thread_time()
        going = True

        def beat() -> None:
            nonlocal last
            now = thread_time()
            self.held.append(now - last)
            last = now
            if going:
                loop.call_soon(beat)

        loop.call_soon(beat)
        try:
            yield
        finally:
            going = False
            gc.enable()


def survey_of(api):
    """The survey behind /topics: the one whose end the desk waits for."""
    return api.desk.on_close[-1].__self__


async def test_a_million_topics_are_searched_by_filter_and_the_loop_is_never_held(api):
    await api.broker.publish(Message("begun", b"1"), principal=LOCAL)
    assert (await api.get("/topics")).json()["known"] == 1
    survey = survey_of(api)
    for number in range(TOPICS - 1):
        survey._note(f"site/{number % 997}/device/{number}/t")
    assert len(survey) == TOPICS
    for path, count in (
        ("/topics?filter=site/5/%23&limit=1000", 1000),
        ("/topics?filter=site/%2B/device/999990/t", 1),
        ("/topics?filter=nothing/%23", 0),
        ("/topics?filter=%23&limit=1000", 1000),
    ):
        held = []
        for _round in range(3):  # another guest of the machine may count as our time, once
            pulse = Pulse()
            async with pulse.beating():
                body = (await api.get(path)).json()
            assert len(body["items"]) == count, path
            held.append(max(pulse.held))
            if held[-1] < HELD_S:
                break
        assert min(held) < HELD_S, path


async def test_pages_of_a_filter_go_on_across_blocks_and_miss_nothing(api):
    await api.get("/topics")
    survey = survey_of(api)
    for number in range(3 * TRIE_TOPICS):
        survey._note(f"{'even' if number % 2 == 0 else 'odd'}/{number}")
    rows = await api.items("/topics?filter=even/%2B", limit=999)
    assert [int(row["topic"][5:]) for row in rows] == list(range(0, 3 * TRIE_TOPICS, 2))


# -- logins


async def test_a_thousand_logins_at_once_are_all_answered(api):
    users = api.authenticator.users
    await users.add("root", "secret", scram=False, administrator=True)
    api.authenticator._passwords._settings = type(api.authenticator._passwords._settings)(
        waiting_max=8
    )
    checked = []

    async def check(name: str, password: bytes):
        checked.append(name)
        await asyncio.sleep(0)
        return await real(name, password)

    real = api.authenticator.password
    api.authenticator.password = check

    async def log_in(number: int):
        # Each with a password of its own, so that none is remembered; few are worth a hash.
        return await api.ask("POST", "/login", {"user": "root", "password": f"no{number % 12}"})

    answers = await asyncio.gather(*(log_in(number) for number in range(1000)))
    assert {row.status_code for row in answers} == {401}
    assert len(checked) == 1000


async def test_logins_of_one_address_do_not_keep_out_another():
    queue, order = LoginQueue(), []

    async def log_in(address: str, number: int) -> None:
        async with queue.turn(address):
            order.append((address, number))
            await asyncio.sleep(0)

    await asyncio.gather(
        *(log_in("a", number) for number in range(100)), *(log_in("b", n) for n in range(3))
    )
    assert len(order) == 103
    assert max(order.index(("b", number)) for number in range(3)) < AT_ONCE + 6 + 1
    assert [number for address, number in order if address == "a"] == list(range(100))


async def test_more_logins_than_may_wait_are_refused_with_a_time_to_wait(api, monkeypatch):
    monkeypatch.setattr("onelog.admin.api.login_queue.WAITING_MAX", 2)
    queue, go = LoginQueue(), asyncio.Event()

    async def log_in() -> None:
        async with queue.turn("a"):
            await go.wait()

    tasks = [asyncio.create_task(log_in()) for _ in range(AT_ONCE + 2)]
    await asyncio.sleep(0)
    with pytest.raises(QuotaExceeded):
        await log_in()
    tasks[-1].cancel()
    go.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    await log_in()

    async def refuse(_user: str, _password: bytes):
        raise QuotaExceeded("too many")

    api.authenticator.password = refuse
    answer = await api.ask("POST", "/login", {"user": "x", "password": "y"})
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0


# -- pipelines


async def test_pipelines_of_the_data_directory_are_shown_with_their_progress(api, tmp_path):
    assert await api.items("/pipelines") == []
    status = Status(
        name="gold",
        file="gold.toml",
        master="local[2]",
        mode="continuous",
        pid=1,
        started="2026-01-01T00:00:00",
        phase="running",
        targets={"sums": Progress(batch=3, rows=40, lag=2)},
    )
    state = State(tmp_path / "pipelines" / "gold")
    with state.held():
        state.save(status)
        assert pipeline_rows(tmp_path)[0].phase == "running"
    broken = tmp_path / "pipelines" / "broken" / "status.json"
    broken.parent.mkdir()
    broken.write_text("{")
    object.__setattr__(api.desk.opened, "pipelines", lambda: pipeline_rows(Path(tmp_path)))
    (row,) = await api.items("/pipelines?search=gold")
    assert (row["name"], row["phase"]) == ("gold", "killed")  # nobody holds its lock
    assert row["targets"][0]["target"] == "sums"
    assert (await api.get("/pipelines/gold")).json() == row
    assert (await api.get("/pipelines/broken")).status_code == 404


# -- looks at messages


@pytest.mark.parametrize(
    "query",
    [
        "stream=main",
        "partition=0",
        "offset=3",
        "time_ms=1",
        "start=earliest&offset=0",
        "start=time&time_ms=1&stream=main",
        "start=offset&offset=3",
        "start=offset&stream=main&time_ms=1",
        "start=time",
    ],
)
async def test_a_parameter_that_the_start_does_not_use_is_refused(api, query):
    answer = await api.get(f"/messages?filter=a&{query}")
    assert answer.status_code == 400
    assert "start=" in answer.json()["error"]["message"]
