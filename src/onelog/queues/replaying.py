"""Queues that begin again elsewhere in the log, and dead letters that go back where they died.

Rules:
- A queue that seeks stands still (`standing.py`). What waits in it is settled, then it is given
  what its bindings of now bring from the new place on. Messages that consumers have, or that are on
  their way to a dead-letter exchange, stay as they are and are not taken in twice.
- A redrive takes the messages that wait in a queue and publishes each to the queue in which it died
  last, by the default exchange. It is settled here only when that is durable (at least once). A
  message that died nowhere, or in a queue that is gone, stays. Any publisher can write where a
  message died, so it goes only to a queue whose dead letters come here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import Conflict, OnelogError
from onelog.broker import LOCAL, Cold, Redriven, Start
from onelog.queues.addresses import message_topic
from onelog.queues.exchanges import Destination
from onelog.queues.history import History
from onelog.queues.stream_queue import StreamQueue

if TYPE_CHECKING:
    from onelog.broker import LiveSource, Message, Record
    from onelog.queues.queue import Queue

REDRIVEN_MAX: Final = 10_000
"""Messages that one redrive looks at."""


async def seek_queue(queue: Queue, start: Start) -> None:
    """Let a queue begin again at a start. Raises Conflict."""
    _check_kind(queue, "seeks")
    await queue.vhost.hub.carry_through(_begin_again(queue, start))


async def _begin_again(queue: Queue, start: Start) -> None:
    hub, vhost = queue.vhost.hub, queue.vhost
    follower = hub.follower
    async with follower.standing.still([queue]):
        standstill = follower.standing.queues[queue]
        async with standstill.lock:
            queue.purge()
            await queue.purging.done()
            stands = standstill.stands
            sources = list(_sources(queue))
            chosen = await start.settled([row.as_source for row in sources])
            positions = {}
            for source in sources:
                first = max(chosen.offset_in(source.as_source), source.partition.start_offset)
                positions[source.key] = min(int(first), stands.at(source.key))
            await History(follower, queue, stands, vhost.router, positions).take()
    if hub.broker.cursors.find(queue.cursor.name) is queue.cursor:
        await hub.broker.cursors.save(queue.cursor)


def _sources(queue: Queue) -> Iterable[LiveSource]:
    """The partitions of all messages that may reach a queue."""
    follower, vhost = queue.vhost.hub.follower, queue.vhost
    found = {source.key: source for source in follower.queue_sources(queue)}
    for binding in vhost.router.bindings_to(Destination("queue", queue.name)):
        if binding.source:
            found |= {row.key: row for row in follower.sources_behind(vhost, binding.source)}
    return found.values()


async def redrive_queue(queue: Queue) -> Redriven:
    """Send what waits in a dead-letter queue back to the queues where it died. Raises Conflict."""
    _check_kind(queue, "has dead letters")
    return await queue.vhost.hub.carry_through(_send_back(queue))


async def _send_back(queue: Queue) -> Redriven:
    left = min(queue.ready.size, REDRIVEN_MAX)
    complete = queue.ready.size <= REDRIVEN_MAX
    sent, staying = 0, []
    try:
        while left > 0 and not queue.is_deleted:
            left -= 1
            try:
                delivery = queue.get()
            except Cold:
                await queue.window.wait()
                left += 1
                continue
            if delivery is None:
                break
            staying.append(delivery.place)
            message = _message(queue, delivery.record)
            if message is not None:
                await queue.vhost.hub.broker.publish(message, principal=LOCAL)
                queue.ack(staying.pop())
                sent += 1
    finally:
        count = len(staying)
        queue.requeue(staying)
    return Redriven(records=sent, gone=0, skipped=count, complete=complete)


def _message(queue: Queue, record: Record) -> Message | None:
    """The message for the queue in which a record died last; None: there is no such queue."""
    vhost = queue.vhost
    try:
        letter = vhost.hub.open_letter(record)
        name = _died_in(letter.table)
        if name is None or name == queue.name or not _buries_in(vhost.queues.get(name), queue):
            return None
        topic = message_topic(vhost.name, "", name)
        return letter.write(topic, {}, ("CC",), vhost.hub.clock.now_ms(), (), ())
    except OnelogError:  # whoever wrote it: it stays
        return None


def _buries_in(source: Queue | None, queue: Queue) -> bool:
    """Whether the dead letters of a queue may come to another one."""
    exchange = None if source is None else source.settings.dead_letter_exchange
    if source is None or exchange is None:
        return False
    if not exchange:
        key = source.settings.dead_letter_routing_key
        return (source.name if key is None else key) == queue.name
    return queue.name in queue.vhost.router.queues_behind(exchange)


def _died_in(table: dict[str, Any]) -> str | None:
    deaths = table.get("x-death")
    newest = deaths[0] if isinstance(deaths, list) and deaths else None
    name = table.get("x-last-death-queue")
    if name is None and isinstance(newest, dict):
        name = newest.get("queue")
    return name if isinstance(name, str) else None


def _check_kind(queue: Queue, does: str) -> None:
    if isinstance(queue, StreamQueue):
        raise Conflict(
            f"{queue.name!r} is a stream queue, and no stream queue {does}: each consumer chooses"
            " its own x-stream-offset"
        )
