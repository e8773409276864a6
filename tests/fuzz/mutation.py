"""Changes what a client said a little, so that it stays near enough to real traffic."""

from __future__ import annotations

import random

from tests.fuzz.framing import Framing

READS_MAX = 400
REPEATS = (2, 3, 17, 129, 300)
"""How often a packet may be said in a row."""

Conversation = list[bytes]
"""Packets, or reads of a socket."""


def mutate_bytes(source: random.Random, data: bytearray) -> None:
    """Change a packet a little: flip, set, cut, double, insert, or make a length huge."""
    for _ in range(source.randint(1, 4)):
        if not data:
            return
        at = source.randrange(len(data))
        kind = source.randrange(7)
        if kind == 0:
            data[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            data[at] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
        elif kind == 2:
            del data[at : at + source.randint(1, 4)]
        elif kind == 3:
            data[at:at] = data[at : at + source.randint(1, 8)]
        elif kind == 4:
            data[at:at] = source.randbytes(source.randint(1, 4))
        elif kind == 5:
            data[at : at + 2] = b"\xff\xff"
        else:
            data[at : at + 4] = b"\xff\xff\xff\x7f"


def mutate_talk(
    source: random.Random, pool: list[Conversation], framing: Framing
) -> tuple[Conversation, Conversation]:
    """A changed conversation of the pool: as packets, and as the reads that bring them."""
    packets = list(source.choice(pool))
    for _ in range(source.choice((0, 0, 1, 1, 2, 3))):
        _rearrange(source, packets, pool)
    for _ in range(source.choice((0, 1, 1, 2, 3))):
        if packets:
            # Mostly late: what comes first opens the door to everything else.
            at = max(source.randrange(len(packets)), source.randrange(len(packets)))
            changed = bytearray(packets[at])
            mutate_bytes(source, changed)
            if source.random() < 0.8:
                framing.mend(changed)
            packets[at] = bytes(changed)
    return packets, _into_reads(source, packets)


def _rearrange(source: random.Random, packets: Conversation, pool: list[Conversation]) -> None:
    other = source.choice(pool)
    at = source.randrange(len(packets) + 1)
    match source.randrange(6):
        case 0 if packets:
            del packets[at : at + source.randint(1, 3)]
        case 1 if packets:
            packets[at:at] = [source.choice(packets)] * source.choice(REPEATS)
        case 2 if len(packets) > 1:
            one, two = source.sample(range(len(packets)), 2)
            packets[one], packets[two] = packets[two], packets[one]
        case 3:
            packets[at:at] = source.sample(other, min(len(other), source.randint(1, 4)))
        case 4:
            packets[at:] = other[source.randrange(len(other) + 1) :]
        case _:
            del packets[at:]


def _into_reads(source: random.Random, packets: Conversation) -> Conversation:
    """Sockets know no packets: all in one read, one each, or cut anywhere."""
    if source.random() < 0.4:
        return packets[:READS_MAX]
    whole = b"".join(packets)
    if source.random() < 0.5:
        return [whole]
    reads, at = [], 0
    while at < len(whole) and len(reads) < READS_MAX:
        size = source.choice((1, 2, 7, 40, 300, 5000))
        reads.append(whole[at : at + size])
        at += size
    return reads
