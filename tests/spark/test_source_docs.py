"""The reference page is true: its examples run, and every option and column stands on it."""

from __future__ import annotations

import re
from pathlib import Path

import paho.mqtt.client as mqtt

from onelog.spark.source.columns import COLUMNS
from onelog.spark.source.options import OPTIONS
from tests.spark.topics import append, make_topic, rows, servers

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "spark.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_every_option_and_column_is_on_the_page() -> None:
    missing = {row.name for row in OPTIONS if f"`{row.name}" not in PAGE}
    assert not missing - {"kafka.isolation.level"}
    assert not {name for name in COLUMNS if f"| `{name}` |" not in PAGE}


def test_the_examples_run(spark, own_broker, tmp_path, capsys) -> None:
    make_topic(own_broker, "orders", 1)
    append(own_broker, "orders", 0, rows("first-order"))
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", own_broker.ports["mqtt"])
    client.loop_start()
    for device, degrees in (("d1", 20.5), ("d2", 31.25)):
        text = f'{{"temperature": {degrees}, "unit": "C"}}'
        client.publish(f"sensors/{device}/telemetry", text, 1).wait_for_publish(10)
    client.loop_stop()
    client.disconnect()
    names: dict[str, object] = {}
    assert len(EXAMPLES) == 2
    for example in EXAMPLES:
        here = example.replace("127.0.0.1:9092", servers(own_broker))
        exec(here.replace('"checkpoint"', f'"{tmp_path}/checkpoint"'), names)
    said = capsys.readouterr().out
    assert "first-order" in said
    assert re.search(r"sensors/d2/telemetry *\| *31\.25", said)
