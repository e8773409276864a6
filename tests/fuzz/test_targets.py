"""Every fuzz target for half a minute, and its whole corpus as it is (I8, I10).

The seed is fixed here, so that a change is judged by itself and not by luck; `make fuzz` looks for
what is new, for longer, from another seed each time. `ONELOG_FUZZ_S` changes how long a target
takes here, `ONELOG_SEED` where it begins: a failure prints the seed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from pathlib import Path

import msgspec
import pytest
import structlog

from tests.fuzz.connections import TARGETS, fuzz, replay
from tests.fuzz.decoders import DECODERS, fuzz_decoder
from tests.fuzz.framing import FRAMINGS, load
from tests.fuzz.mutation import mutate_talk

SECONDS = float(os.environ.get("ONELOG_FUZZ_S") or 20)
KEPT = sorted((Path(__file__).parent / "found").glob("*.reads"))


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("ONELOG_SEED") or 1)
    print(f"ONELOG_SEED={chosen}")  # noqa: T201 - shown when it fails
    return chosen


@pytest.fixture(autouse=True)
def logging_as_before():
    """The world listens to what is logged; others must not be listened to by it."""
    before = structlog.get_config(), logging.getLogger().handlers
    yield
    structlog.configure(**before[0])
    logging.getLogger().handlers = before[1]


@pytest.mark.parametrize("name", TARGETS)
def test_no_bytes_break_a_connection_its_neighbours_or_the_next_start(name, seed):
    tally = asyncio.run(fuzz(name, SECONDS, seed))
    assert tally.inputs > SECONDS, "too slow to find anything"
    assert len(tally.shapes) > 10, "every input is refused at the door"


@pytest.mark.parametrize("name", DECODERS)
def test_any_bytes_are_decoded_or_refused_with_the_protocols_error(name, seed):
    assert fuzz_decoder(name, SECONDS, seed) > 1000


@pytest.mark.parametrize("name", TARGETS)
def test_what_real_clients_said_is_answered_and_survives_a_restart(name, tmp_path):
    talks = load(name)
    assert talks
    asyncio.run(replay(name, tmp_path, talks))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_was_found_once_is_not_found_again(path, tmp_path):
    reads = msgspec.msgpack.decode(path.read_bytes())
    asyncio.run(replay(path.stem.partition("-")[0], tmp_path, [reads]))


@pytest.mark.parametrize("name", FRAMINGS)
def test_packets_of_the_corpus_go_together_again_as_they_were(name):
    framing = FRAMINGS[name]
    for packets in load(name):
        assert framing.split(b"".join(packets)) == packets
        for packet in packets:
            mended = bytearray(packet)
            framing.mend(mended)
            assert mended == packet


def test_a_conversation_is_changed_the_same_way_by_the_same_seed():
    pool = load("mqtt")
    one, two = (mutate_talk(random.Random(5), pool, FRAMINGS["mqtt"]) for _ in range(2))
    assert one == two
