"""Shards: which services serve which names, through elections, losses and failures."""

from __future__ import annotations

import asyncio

import pytest

from onelog.base.clock import SystemClock
from onelog.base.errors import NotOwner, StateLoading, StateUnknown
from onelog.broker.shards import DROP, TAKE, Shards
from onelog.log.internal import Placement
from onelog.observe.troubles import Troubles


class Serving:
    """A service that notes what it is told."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name = name
        self.said = said
        self.error: BaseException | None = None
        self.began = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def take(self, shard: int) -> None:
        self.said.append(f"{self.name}+{shard}")
        self.began.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error

    async def drop(self, shard: int) -> None:
        self.said.append(f"{self.name}-{shard}")
        if self.error is not None:
            raise self.error


def make(count: int = 4, *, led: bool = False, owner: int = 7) -> tuple[Shards, Troubles]:
    troubles = Troubles(SystemClock())
    shards = Shards(troubles, lambda _name: owner)
    shards.open(Placement(count), led=led)
    return shards, troubles


def name_in(shards: Shards, shard: int) -> bytes:
    return next(b"n%d" % n for n in range(1000) if shards.of(b"n%d" % n) == shard)


async def test_services_take_in_the_order_of_registration_and_drop_in_reverse() -> None:
    shards, _ = make()
    said: list[str] = []
    for name in "abc":
        await shards.register(Serving(name, said))
    assert not said and not shards.owned
    await shards.lead(2)
    assert said == ["a+2", "b+2", "c+2"] and shards.owned == {2}
    await shards.lead(2)  # nothing to do
    await shards.lose(2)
    assert said[3:] == ["c-2", "b-2", "a-2"] and not shards.owned
    await shards.lose(2)
    assert len(said) == 6


async def test_a_node_on_its_own_gives_all_shards_to_a_service_as_it_registers() -> None:
    shards, _ = make(led=True)
    said: list[str] = []
    await shards.register(Serving("a", said))
    assert said == ["a+0", "a+1", "a+2", "a+3"] and shards.owned == {0, 1, 2, 3}


async def test_an_error_at_registration_goes_to_the_caller_and_leaves_nothing() -> None:
    shards, troubles = make(led=True)
    said: list[str] = []
    bad = Serving("a", said)
    bad.error = StateUnknown("damaged")
    with pytest.raises(StateUnknown, match="damaged"):
        await shards.register(bad)
    assert not troubles.standing()
    await shards.lose(0)
    assert said.count("a-0") == 1  # of the failed take


async def test_a_service_that_raises_stands_as_a_trouble_and_harms_no_other() -> None:
    shards, troubles = make()
    said: list[str] = []
    good, bad, last = (Serving(name, said) for name in "gbl")
    for service in (good, bad, last):
        await shards.register(service)
    bad.error = RuntimeError("no rows")
    await shards.lead(1)
    name = name_in(shards, 1)
    shards.check(good, name)
    shards.check(last, name)
    with pytest.raises(StateUnknown, match="b/1 could not be opened"):
        shards.check(bad, name)
    assert [(row.kind, row.place) for row in troubles.standing()] == [(TAKE, "b/1")]
    bad.error = None
    await shards.lead(1)  # the failed one tries again, the others do not
    shards.check(bad, name)
    assert not troubles.standing() and said.count("g+1") == 1
    bad.error = RuntimeError("stuck")
    await shards.lose(1)
    assert said[-1] == "g-1" and troubles.count(DROP) >= 1


async def test_a_name_of_another_node_names_its_owner() -> None:
    shards, _ = make(owner=3)
    service = Serving("a", [])
    await shards.register(service)
    await shards.lead(0)
    shards.check(service, name_in(shards, 0))
    assert shards.serves(service, name_in(shards, 0))
    with pytest.raises(NotOwner, match="node 3 owns it") as raised:
        shards.check(service, name_in(shards, 1))
    assert raised.value.node == 3
    assert not shards.serves(service, name_in(shards, 1))
    unknown, _ = make(owner=-1)
    with pytest.raises(NotOwner, match="is being elected"):
        unknown.check_led(b"x")


async def test_a_node_that_may_have_been_deposed_answers_for_no_name_and_keeps_what_it_has() -> (
    None
):
    shards, _ = make(owner=0)
    said: list[str] = []
    service = Serving("a", said)
    await shards.register(service)
    for shard in (0, 1):
        await shards.lead(shard)
    fresh = {0}
    shards.is_fresh = fresh.__contains__
    shards.check(service, name_in(shards, 0))
    with pytest.raises(NotOwner, match="cut off") as raised:
        shards.check(service, name_in(shards, 1))
    assert raised.value.node == -1, "nobody knows who it is"
    assert [shards.holds(name_in(shards, one)) for one in (0, 1, 2)] == [True, False, False]
    fresh.add(1)
    shards.check(service, name_in(shards, 1))
    assert said == ["a+0", "a+1"], "it was the owner after all"


async def test_names_are_loading_until_their_service_has_taken_the_shard() -> None:
    shards, _ = make()
    said: list[str] = []
    fast, slow = Serving("f", said), Serving("s", said)
    await shards.register(fast)
    await shards.register(slow)
    slow.gate.clear()
    leading = asyncio.create_task(shards.lead(0))
    await slow.began.wait()
    name = name_in(shards, 0)
    shards.check(fast, name)
    with pytest.raises(StateLoading):
        shards.check(slow, name)
    assert shards.led == {0} and not shards.owned
    slow.gate.set()
    await leading
    shards.check(slow, name)


async def test_a_loss_while_a_service_takes_ends_the_taking_and_drops_what_was_taken() -> None:
    shards, troubles = make()
    said: list[str] = []
    fast, slow, last = (Serving(name, said) for name in "fsl")
    for service in (fast, slow, last):
        await shards.register(service)
    slow.gate.clear()
    leading = asyncio.create_task(shards.lead(0))
    await slow.began.wait()
    losing = asyncio.create_task(shards.lose(0))
    await asyncio.sleep(0)
    assert not shards.serves(fast, name_in(shards, 0))  # at once
    await asyncio.gather(leading, losing)
    assert said == ["f+0", "s+0", "s-0", "f-0"] and not troubles.standing()


async def test_a_shard_that_is_lost_and_won_at_once_is_read_anew() -> None:
    shards, _ = make()
    said: list[str] = []
    service = Serving("a", said)
    await shards.register(service)
    await shards.lead(0)
    await asyncio.gather(shards.lose(0), shards.lead(0))
    assert said == ["a+0", "a-0", "a+0"] and shards.owned == {0}


async def test_a_service_that_was_removed_is_given_nothing() -> None:
    shards, _ = make(led=True)
    said: list[str] = []
    service = Serving("a", said)
    await shards.register(service)
    shards.remove(service)
    await shards.lose(0)
    await shards.lead(0)
    assert "a-0" not in said and said.count("a+0") == 1
