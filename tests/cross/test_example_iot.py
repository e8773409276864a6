"""The example of the tutorial runs in short form and proves what it says; the page shows it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import pytest

from tests.conformance.mqtt_brokers import ROOT, environment

EXAMPLE = ROOT / "examples" / "iot"
GUIDE = (ROOT / "docs" / "guide" / "iot.md").read_text()


@pytest.fixture
def example(monkeypatch):
    """The modules of the example, which find each other by their folder."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    names = {path.stem for path in EXAMPLE.glob("*.py")} - set(sys.modules)
    yield
    for name in names:
        sys.modules.pop(name, None)


def test_everybody_sees_exactly_what_was_sent():
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--seconds", "3", "--devices", "6"],
        env=environment() | {"COLUMNS": "80"},
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    rows = re.findall(r"^ (.+?) +([\d,]+) +([\d,]+) +equal *$", done.stdout, re.MULTILINE)
    assert len(rows) == 6
    assert all(sent == seen for _text, sent, seen in rows)
    assert int(rows[0][1].replace(",", "")) > 50
    assert "NOT" not in done.stdout
    for word in ("machines", "averages", "4 workers", "given up", "late view"):
        assert f"\n {word}" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_a_message_that_is_missing_or_comes_twice_is_not_equal(example):
    """What the exit code stands for: equal counts alone are not enough."""
    from plan import Said  # noqa: PLC0415
    from table import claim  # noqa: PLC0415

    one, two = Said("m01", "alarm", 1), Said("m01", "alarm", 2)
    assert claim("", Counter([one, two]), Counter([two, one])).holds
    assert not claim("", Counter([one, two]), Counter([one])).holds
    assert not claim("", Counter([one, two]), Counter([one, one])).holds


def test_the_page_shows_what_the_example_does():
    code = " ".join("".join(path.read_text() for path in EXAMPLE.glob("*.py")).split())
    for text in (
        "plant._x2B_._x2B_.telemetry", "plant._x23_", "$replay/earliest/plant/#",
        '"x-queue-type": "quorum"', '"amq.topic", "plant.*.*.alarm"', "x-onelog-from",
        "given-up", "repairs.dead", '"m03"',
    ):  # fmt: skip
        assert text in code
        assert text.strip('"') in GUIDE
    for name in ("devices.py", "stream.py", "workers.py"):
        assert f"`{name}`" in GUIDE
        assert (EXAMPLE / name).exists()
