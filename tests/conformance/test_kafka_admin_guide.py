"""The guide to Kafka works: its programs run as they stand there and print what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import kafka_kcat
from tests.conformance.kafka_brokers import KafkaOnelog
from tests.conformance.mqtt_brokers import DEADLINE_S

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "kafka.md").read_text()
PROGRAMS = [
    text for text in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL) if "# prints: " in text
]
READS = re.findall(r"^(kcat .* -e .*?) +# (\S+)", GUIDE, re.MULTILINE)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[KafkaOnelog]:
    made = KafkaOnelog(tmp_path_factory.mktemp("guide"))
    made.start()
    yield made
    assert made.stop() == 0
    assert not made.errors()


def run(command: list[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_programs() -> None:
    assert len(PROGRAMS) == 4


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_guide_prints_what_it_says(server, number) -> None:
    program = PROGRAMS[number].replace("127.0.0.1:9092", f"127.0.0.1:{server.port}")
    expected = re.findall(r"# prints: (.*)", program)
    assert run([sys.executable, "-c", program]).splitlines() == expected


def test_kcat_reads_what_mqtt_wrote(server) -> None:
    if not kafka_kcat.available():
        pytest.skip("kcat is missing: run 'apt-get install kcat' as root")
    for topic, text in re.findall(r"^mosquitto_pub -q 1 -t (\S+) -m (\S+)$", GUIDE, re.MULTILINE):
        publish(server, topic, text)
    assert len(READS) == 2
    for command, word in READS:
        words = command.replace("127.0.0.1:9092", f"127.0.0.1:{server.port}").split()
        values = sorted(run(words).split())
        assert values == ([word] if word[0].isdigit() else ["19.0", "21.5"])


def publish(server: KafkaOnelog, topic: str, text: str) -> None:
    """As mosquitto_pub does."""
    program = (
        "import sys, paho.mqtt.publish as p\n"
        "p.single(sys.argv[1], sys.argv[2], qos=1, hostname='127.0.0.1', port=int(sys.argv[3]))"
    )
    run([sys.executable, "-c", program, topic, text, str(server.ports["mqtt"])])
