"""The pages of AMQP are true: tests, differences, limits are named, and the guide's code runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from onelog.config.amqp import AmqpLimits
from onelog.protocols.amqp.errors import Reply
from tests.conformance.amqp_differences import DIFFERENCES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "amqp.md").read_text()
GUIDE = (ROOT / "docs" / "guide" / "amqp.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def test_every_test_that_the_page_names_exists():
    known = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named
    assert not named - known


def test_every_row_of_the_checklist_is_answered():
    assert re.findall(
        r"^\| (\d+) \| [A-Za-z`0-9]", PAGE.partition("## Errors")[0], re.MULTILINE
    ) == [str(number) for number in range(50, 97)]


def test_every_reply_code_is_answered():
    section = PAGE.partition("## Errors")[2].partition("\n## ")[0]
    told = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE)
            for code in row.split(", ")}  # fmt: skip
    assert told == {int(code) for code in Reply} - {200}


def test_every_known_difference_to_rabbitmq_is_explained():
    section = PAGE.partition("## Where RabbitMQ")[2].partition("\nMore differences:")[0]
    explained = set(re.findall(r"`(test_\w+)`", section))
    assert explained == {name.partition("[")[0] for name in DIFFERENCES}


def test_every_limit_is_on_the_page():
    assert not {name for name in AmqpLimits.__struct_fields__ if f"`{name}`" not in PAGE}


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_code_of_the_guide_prints_what_it_says(onelog_server, number):
    code = BLOCKS[number].replace(":5672/", f":{onelog_server.ports['amqp']}/")
    expected = re.findall(r"# prints: (.*)", code)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout.splitlines() == expected, done.stderr
