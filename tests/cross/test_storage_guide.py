"""The guides to storage and tables are true: a new user types one command after the other."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.mqtt_brokers import ROOT, Onelog, environment
from tests.support.forks import run_onelog

LONG_S = 120.0
ELSEWHERE = ("sql",)
"""Commands that need Spark; tests of it have them."""


def commands(page: str) -> list[list[str]]:
    """The commands of a page, in their order."""
    text = (ROOT / "docs" / "guide" / page).read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    found = [shlex.split(line, comments=True) for line in lines if ".venv/bin/onelog" in line]
    return [words[1:] for words in found if words[1] not in ELSEWHERE]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Onelog]:
    (tmp_path / "store").mkdir()
    found = Onelog(tmp_path, f'store.url="file://{tmp_path}/store"', 'data_dir="data"').start()
    yield found
    assert found.stop() == 0


@pytest.mark.parametrize(("page", "least"), [("storage.md", 15), ("lakehouse.md", 5)])
def test_every_command_of_a_guide_works_and_says_something(
    broker: Onelog, page: str, least: int
) -> None:
    wanted = commands(page)
    assert len(wanted) >= least
    for number, words in enumerate(wanted):
        ends = time.monotonic() + LONG_S
        while True:
            done = run_onelog(*words, folder=broker.folder, environment=environment())
            said = done.stdout.decode() + done.stderr.decode()
            # What the command before began may still be under way: its words say so.
            if "is being moved already: wait" not in said or time.monotonic() > ends:
                break
            time.sleep(0.05)
        assert done.returncode == 0, f"{' '.join(words)}: {said}"
        assert said.strip(), f"`onelog {' '.join(words)}` says nothing"
        if words[:2] == ["stream", "create"]:
            topic = f"{words[2]}/a" if "--capture" in words else words[2]
            broker.command("pub", topic, "1", "--port", str(broker.ports["mqtt"]))
        assert number < 100
