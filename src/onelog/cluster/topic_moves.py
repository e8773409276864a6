"""Topics that move between streams, as the nodes of a cluster settle it (`log/moves_over_nodes`).

Rules:
- A leader says where its partition ends when everything that it took is visible. The word counts
  when a fresh read of the metadata names the same leader, in the same epoch, after it.
- A node has adopted a change when it writes to the new homes, and nothing that it took for the old
  ones before is under way. A node that is not registered any more is not waited for.
- The controller's node finishes what the node of a command left open.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

import msgspec

from onelog.base.errors import NotLeader, OnelogError, Timeout, Unavailable
from onelog.base.ids import Offset, PartitionId
from onelog.cluster.exact_needs import SeenTerms
from onelog.cluster.forwards import Forwarder
from onelog.cluster.known import KnownCluster
from onelog.cluster.needs_of_nodes import Call
from onelog.cluster.row_store import RowStore
from onelog.log.catalog import Catalog
from onelog.log.handle import PartitionHandle
from onelog.log.moves import SourceKey, holds_any
from onelog.log.moves_over_nodes import HomeEnd, Questions
from onelog.observe.troubles import Troubles
from onelog.storage.engine import PartitionKey

ENDS: Final = "ends"
"""The call that asks a leader about its partitions."""
ADOPT: Final = "adopt"
"""The call that asks whether a node writes to the new homes."""
UNSETTLED: Final = "topic-move-unsettled"
"""Standing: readers of topics that moved wait, since not every node has answered."""
CALL_S: Final = 5.0
LED_S: Final = 10.0
"""How long a change waits for leaders; an election takes less."""
AGAIN_S: Final = 0.1
LOOK_S: Final = 5.0
IDLE_LOOK_S: Final = 0.02


class EndsQuestion(msgspec.Struct, frozen=True, array_like=True):
    """Where does a partition end, and does it hold one of these topics; None: anything?"""

    stream_id: str
    partition: int
    topics: tuple[str, ...] | None


class EndsWord(msgspec.Struct, frozen=True, array_like=True):
    """What its leader says."""

    end: int
    holds: bool


class AdoptQuestion(msgspec.Struct, frozen=True, array_like=True):
    """Have these rows of streams, and nothing under way to these partitions."""

    revisions: dict[str, int]
    left: tuple[SourceKey, ...]


_ends: Final = msgspec.msgpack.Decoder(list[EndsQuestion])
_adopt: Final = msgspec.msgpack.Decoder(AdoptQuestion)


class TopicMoves:
    """Asks the other nodes, and answers them."""

    def __init__(
        self,
        catalog: Catalog,
        led: Callable[[PartitionKey], PartitionHandle | None],
        local: Callable[[PartitionKey], PartitionHandle | None],
        known: KnownCluster,
        rows: RowStore,
        forwarder: Forwarder,
        call: Call,
        troubles: Troubles,
    ) -> None:
        self._catalog = catalog
        self._led = led
        self._local = local
        self._known = known
        self._rows = rows
        self._forwarder = forwarder
        self._call = call
        self._troubles = troubles
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Look for what commands left open, from now on."""
        self._task = asyncio.create_task(self._run(), name="cluster-topic-moves")

    async def close(self) -> None:
        """Look no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    # -- where partitions end

    async def answer_ends(self, _node: int, argument: msgspec.Raw) -> list[EndsWord]:
        """What this node says of partitions that it leads."""
        async with _in_time():
            return [await self._end(row) for row in _ends.decode(argument)]

    async def _end(self, question: EndsQuestion) -> EndsWord:
        key = _key((question.stream_id, question.partition))
        partition = self._led(key)
        if partition is None:
            raise NotLeader(f"{key} is not led here")
        if partition.end_offset > partition.high_watermark:
            await partition.wait_visible(Offset(partition.end_offset - 1))
        end = int(partition.high_watermark)
        return EndsWord(end, await holds_any(partition, question.topics))

    async def ask(self, questions: Questions) -> dict[SourceKey, HomeEnd]:
        """See `Hosting`. Where the metadata cannot be read, nobody waits for leaders."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LED_S
        while True:
            why: OnelogError = Unavailable("a leader changed meanwhile")
            try:
                seen = SeenTerms(self._rows, self._known, map(_key, questions))
                found = await self._words(questions, seen)
            except OnelogError as error:
                why = error
            else:
                if await seen.still_lead():
                    return found
            if loop.time() >= until:
                raise Unavailable(
                    f"not every leader says where its partition ends ({why}): try again"
                ) from why
            await asyncio.sleep(AGAIN_S)

    async def _words(self, questions: Questions, seen: SeenTerms) -> dict[SourceKey, HomeEnd]:
        by_node: dict[int, list[EndsQuestion]] = {}
        for key, topics in questions.items():
            leader, _node_epoch, _epoch = seen.term(_key(key))
            by_node.setdefault(leader, []).append(EndsQuestion(*key, topics))
        found: dict[SourceKey, HomeEnd] = {}
        for node, asked in by_node.items():
            if node == self._known.node:
                words = [await self._end(row) for row in asked]
            else:
                words = await self._call(node, ENDS, asked, list[EndsWord], CALL_S)
            for row, word in zip(asked, words, strict=True):
                found[row.stream_id, row.partition] = HomeEnd(word.end, word.holds)
        return found

    # -- who writes to the new homes

    async def answer_adopt(self, _node: int, argument: msgspec.Raw) -> bool:
        """Adopt a change, and wait for what is under way here."""
        question = _adopt.decode(argument)
        async with _in_time():
            await self._adopted(question.revisions, question.left)
        return True

    async def _adopted(self, revisions: Mapping[str, int], left: Sequence[SourceKey]) -> None:
        await self._catalog.reach(revisions)
        for key in map(_key, left):
            partition = self._local(key)
            if partition is not None and partition.end_offset > partition.high_watermark:
                with contextlib.suppress(OnelogError):  # then it goes to another leader
                    await partition.wait_visible(Offset(partition.end_offset - 1))
                    continue
                await asyncio.sleep(0)  # its publishers hear of that in this pass
            while self._forwarder.is_busy(key):  # noqa: ASYNC110 - it ends in many places
                await asyncio.sleep(IDLE_LOOK_S)

    async def until_adopted(self, revisions: Mapping[str, int], left: Sequence[SourceKey]) -> None:
        """See `Hosting`: returns when every registered node has."""
        await self._adopted(revisions, left)
        done = {self._known.node}
        question = AdoptQuestion(dict(revisions), tuple(left))
        while missing := {row.id for row in self._known.nodes()} - done:
            for node in missing:
                with contextlib.suppress(OnelogError):  # asked again while it is registered
                    await self._call(node, ADOPT, question, bool, CALL_S)
                    done.add(node)
            if not missing <= done:
                await asyncio.sleep(AGAIN_S)

    # -- what was left open

    async def _run(self) -> None:
        before: set[str] = set()
        while True:
            await asyncio.sleep(LOOK_S)
            now = {row.name for row in self._catalog.settling.unsettled()}
            is_mine = self._known.controller == self._known.node
            for name in (now & before) if is_mine else ():
                await self._settle(name)
            before = now

    async def _settle(self, name: str) -> None:
        try:
            async with asyncio.timeout(LED_S + CALL_S):
                await self._catalog.settling.settle([name])
        except (OnelogError, TimeoutError) as error:
            self._troubles.stand(UNSETTLED, name, Timeout(str(error)), blocks=False)
        else:
            self._troubles.clear(UNSETTLED, name)


@contextlib.asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    """Whoever asked waits no longer than this."""
    try:
        async with asyncio.timeout(CALL_S):
            yield
    except TimeoutError:
        raise Timeout(f"not within {CALL_S:g} s") from None


def _key(key: SourceKey) -> PartitionKey:
    return PartitionKey(key[0], PartitionId(key[1]))
