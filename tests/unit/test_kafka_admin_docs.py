"""The reference page of Kafka is true: APIs, settings, limits and tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

from onelog.config.kafka import KafkaGroups, KafkaLimits, KafkaTopics, KafkaTransactions
from onelog.config.streams import StreamDefaults
from onelog.protocols.kafka.admin.choosing import default_config
from onelog.protocols.kafka.admin.topic_settings import TOPIC_SETTINGS
from onelog.protocols.kafka.apis import APIS
from onelog.protocols.kafka.errors import ErrorCode

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "kafka.md").read_text()
DEFAULTS = default_config(StreamDefaults(), "t", "t", 1)


def test_the_table_of_apis_is_the_one_that_is_served() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)(?:\u2013(\d+))? \|", PAGE, re.MULTILINE)
    shown = {int(key): (name, int(first), int(last or first)) for key, name, first, last in rows}
    assert shown == {
        key: (api.key.name.title().replace("_", ""), api.first, api.last)
        for key, api in APIS.items()
    }


def test_the_tables_of_settings_show_each_with_its_default() -> None:
    rows = re.findall(r"^\| `([a-z0-9.]+)` \| (?:`(.*?)` )?\| (.+) \|$", PAGE, re.MULTILINE)
    shown = {name: (value, about) for name, value, about in rows}
    for row in TOPIC_SETTINGS.values():
        assert shown[row.name] == (row.text(DEFAULTS), row.about)


def test_settings_stand_in_the_table_where_they_belong() -> None:
    changing, _, fixed = PAGE.partition("The other settings of Kafka 4")
    for row in TOPIC_SETTINGS.values():
        idle = row.about.startswith("No effect")
        assert f"| `{row.name}` |" in (fixed if idle else changing)


def test_every_key_of_the_configuration_is_on_the_page() -> None:
    sections = (KafkaLimits, KafkaTopics, KafkaGroups, KafkaTransactions)
    names = {name for section in sections for name in section.__struct_fields__}
    section = PAGE.partition("## Limits")[2].partition("\n## ")[0]
    assert not {name for name in names if not re.search(rf"[`.]{name}`", section)}


def test_every_error_that_the_page_names_has_the_code_that_it_says() -> None:
    named = re.findall(r"\b([A-Z][A-Z_]{4,}) \((\d+)\)", PAGE)
    assert len(named) > 10
    for name, number in named:
        assert ErrorCode(int(number)).name == name.lower()


def test_every_test_that_the_page_names_exists() -> None:
    known = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named
    assert not named - known
