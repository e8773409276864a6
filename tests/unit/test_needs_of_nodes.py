"""Does nothing leave a partition that a cursor of another node may need, also while shards move?"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace

import msgspec
import pytest

from onelog.base.errors import Unavailable
from onelog.cluster.needs_of_nodes import FRESH_S, SLICE, NeedsOfNode, NodePins
from onelog.cluster.rows import NOBODY
from onelog.log.cluster_map import NodePlace

KEY = ("s-1", 0)
OTHER = ("s-1", 1)
MINE, OLD, NEW = 1, 2, 3


@dataclass
class Shards:
    """The shards that this node owns, of so many."""

    owned: set[int] = field(default_factory=set)
    count: int = 2

    def __len__(self) -> int:
        return self.count


class Cluster:
    """Three nodes; this one asks, and the test says what the others answer."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.node = MINE
        self.there = {MINE, OLD, NEW}
        self.owners = {0: OLD, 1: OLD}
        self.says: dict[int, NeedsOfNode] = {
            OLD: NeedsOfNode((0, 1), ((*KEY, 7),)),
            NEW: NeedsOfNode((), ()),
        }
        self.shards = Shards()
        self.end = 10
        self.partitions = 1
        self.needs: dict[tuple[str, int], int] = {}
        broker = SimpleNamespace(
            streams=self, shards=self.shards, lowest_needs=lambda: dict(self.needs)
        )
        self.pins = NodePins(broker, self, self._call, lambda: self.time)

    def nodes(self) -> list[NodePlace]:
        return [NodePlace(number, 1, "", False, {}) for number in sorted(self.there)]

    def owner_of(self, shard: int) -> int:
        return self.owners[shard]

    def streams(self) -> list[SimpleNamespace]:
        """The one stream, as the catalog has it."""
        local = [SimpleNamespace(id=n, high_watermark=self.end) for n in range(self.partitions)]
        return [SimpleNamespace(record=SimpleNamespace(id=KEY[0]), local=local)]

    async def _call(self, node: int, method: str, *_: object) -> NeedsOfNode:
        assert method == "pins"
        if node not in self.says:
            raise Unavailable("it does not answer")
        return self.says[node]

    def is_known(self) -> bool:
        """Whether retention may take anything."""
        try:
            self.pins.lowest()
        except Unavailable:
            with pytest.raises(Unavailable):
                self.pins.spoken_for(KEY)
            return False
        self.pins.spoken_for(KEY)
        return True


@pytest.fixture
async def cluster() -> Cluster:
    made = Cluster()
    await made.pins.ask()
    assert made.pins.lowest() == {KEY: 7}
    return made


async def test_before_anybody_was_asked_nothing_is_known() -> None:
    assert not Cluster().is_known()


async def test_the_lowest_of_all_words_counts(cluster: Cluster) -> None:
    cluster.owners[1] = NEW
    cluster.says = {
        OLD: NeedsOfNode((0,), ((*KEY, 9), (*OTHER, 3))),
        NEW: NeedsOfNode((1,), ((*KEY, 5),)),
    }
    await cluster.pins.ask()
    assert cluster.pins.lowest() == {KEY: 5, OTHER: 3}


async def test_needs_of_an_owner_that_is_gone_are_unknown_until_the_next_owner_names_them(
    cluster: Cluster,
) -> None:
    cluster.there.discard(OLD)
    cluster.owners = dict.fromkeys(cluster.owners, NOBODY)
    await cluster.pins.ask()
    assert not cluster.is_known()
    cluster.owners = dict.fromkeys(cluster.owners, NEW)
    await cluster.pins.ask()  # the new one still reads the rows
    assert not cluster.is_known()
    cluster.says[NEW] = NeedsOfNode((0, 1), ((*KEY, 7),))
    await cluster.pins.ask()
    assert cluster.pins.lowest() == {KEY: 7}


async def test_needs_of_a_shard_that_was_handed_over_are_unknown_until_its_new_owner_names_them(
    cluster: Cluster,
) -> None:
    """C9, C11: the old owner's word is replaced by one that knows nothing of the shard."""
    cluster.owners[0] = NEW
    assert not cluster.is_known()
    cluster.says[OLD] = NeedsOfNode((1,), ())
    await cluster.pins.ask()
    assert not cluster.is_known()
    cluster.says[NEW] = NeedsOfNode((0,), ((*KEY, 7),))
    await cluster.pins.ask()
    assert cluster.pins.lowest() == {KEY: 7}


async def test_an_old_owner_that_still_names_a_shard_does_not_speak_for_it(
    cluster: Cluster,
) -> None:
    """It may not have heard of the election: the new owner's cursors are not in its word."""
    cluster.owners[0] = NEW
    await cluster.pins.ask()
    assert not cluster.is_known()


async def test_an_owner_that_no_longer_names_a_shard_makes_its_needs_unknown(
    cluster: Cluster,
) -> None:
    """It lost the shard and won it again: it reads the rows anew."""
    cluster.says[OLD] = NeedsOfNode((1,), ())
    await cluster.pins.ask()
    assert not cluster.is_known()


async def test_a_silent_owner_is_believed_for_a_while_only(cluster: Cluster) -> None:
    del cluster.says[OLD]
    cluster.time += FRESH_S - 1
    await cluster.pins.ask()
    assert cluster.pins.lowest() == {KEY: 7}
    cluster.time += 2
    assert not cluster.is_known()


async def test_a_shard_that_this_node_still_takes_is_unknown(cluster: Cluster) -> None:
    cluster.owners[0] = MINE
    assert not cluster.is_known()
    cluster.shards.owned = {0}
    assert cluster.is_known()


async def test_nothing_behind_the_end_at_the_time_of_the_question_is_spoken_for(
    cluster: Cluster,
) -> None:
    """C11: a session that subscribed since then needs what came since then."""
    cluster.end = 50
    assert cluster.pins.spoken_for(KEY) == 10
    assert cluster.pins.spoken_for(OTHER) == 0, "it came here since"
    await cluster.pins.ask()
    assert cluster.pins.spoken_for(KEY) == 50


async def test_the_oldest_word_that_counts_decides_what_is_spoken_for(cluster: Cluster) -> None:
    cluster.owners[1] = NEW
    cluster.says[NEW] = NeedsOfNode((1,), ())
    del cluster.says[OLD]
    cluster.end = 50
    await cluster.pins.ask()
    assert cluster.pins.spoken_for(KEY) == 10
    cluster.owners[0] = NEW
    cluster.says[NEW] = NeedsOfNode((0, 1), ())
    await cluster.pins.ask()
    assert cluster.pins.spoken_for(KEY) == 50


async def test_a_node_that_owns_every_cursor_asks_nobody_what_leaves(cluster: Cluster) -> None:
    cluster.shards.owned = {0, 1}
    cluster.says.clear()
    cluster.time += 10 * FRESH_S
    assert cluster.pins.spoken_for(KEY) is None


async def test_the_ends_of_many_partitions_are_noted_in_slices(cluster: Cluster) -> None:
    cluster.partitions = 2 * SLICE
    asking = cluster.pins.ask()
    turns = 0
    with pytest.raises(StopIteration):
        for turns in itertools.count(1):  # noqa: B007 - how often others had their turn
            asking.send(None)
    assert turns == 3
    assert cluster.pins.spoken_for((KEY[0], 2 * SLICE - 1)) == 10


async def test_a_node_names_its_shards_and_the_lowest_offsets_of_its_cursors(
    cluster: Cluster,
) -> None:
    cluster.shards.owned, cluster.needs = {1}, {KEY: 4}
    said = await cluster.pins.answer(OLD, msgspec.Raw())
    assert said == NeedsOfNode((1,), ((*KEY, 4),))
