"""The reference page of MQTT is true: it names tests that exist and every known difference."""

from __future__ import annotations

import re
from pathlib import Path

from onelog.config.mqtt import MqttLimits
from tests.conformance.mqtt_differences import DIFFERENCES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "mqtt.md").read_text()


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
    assert re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE) == [str(n) for n in range(1, 50)]


def test_every_known_difference_to_mosquitto_is_explained():
    section = PAGE.partition("## Where Mosquitto")[2].partition("\n## ")[0]
    explained = set(re.findall(r"`(test_\w+)`", section))
    assert explained == {name.partition("[")[0] for name in DIFFERENCES}


def test_every_limit_is_on_the_page():
    assert not {name for name in MqttLimits.__struct_fields__ if f"`{name}`" not in PAGE}
