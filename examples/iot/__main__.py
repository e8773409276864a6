"""One log, many views: devices, a stream, workers and late comers on one broker.

Run it: make example-iot, or .venv/bin/python examples/iot [--seconds 12] [--devices 20]

The guide is docs/guide/iot.md. The exit code is 0 when everybody saw exactly what was sent.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from broker import running_broker, stored_records
from devices import Device
from late import LateAmqp, LateKafka, LateMqtt
from plan import Ports, Said
from rich.console import Console
from rich.live import Live
from stream import TOPIC, StreamConsumer
from table import Board, Claim, Row, claim, draw_claims
from tally import Tally
from workers import DEAD_QUEUE, QUEUE, Undertaker, Worker, declare

WORKERS = 4
CATCH_UP_S = 60.0
"""How long views may take to see the last message when the devices are silent."""
ALL = ("telemetry", "alarm")


class Example:
    """Everybody, and what each has seen."""

    def __init__(self, ports: Ports, devices: int, rate: float) -> None:
        self.ports = ports
        self.sent, self.averages, self.repaired = Tally(), Tally(), Tally()
        self.failed, self.given_up = Tally(), Tally()
        self.late_mqtt, self.late_kafka, self.late_amqp = Tally(), Tally(), Tally()
        self.late = (self.late_mqtt, self.late_kafka, self.late_amqp)
        self.devices = [Device(number, ports, rate, self.sent) for number in range(devices)]
        self.readers: list[StreamConsumer | Worker | Undertaker | LateMqtt | LateKafka | LateAmqp]
        self.readers = [StreamConsumer(ports, self.averages), Undertaker(ports, self.given_up)]
        self.readers += [Worker(ports, self.repaired, self.failed) for _ in range(WORKERS)]
        self.sent.say(f"{devices} machines")
        self.board = Board(
            self.sent,
            [
                Row("machines", "MQTT", "plant/<hall>/<machine>/…", self.sent, ALL),
                Row("averages", "Kafka", TOPIC, self.averages, ("telemetry",)),
                Row(f"{WORKERS} workers", "AMQP", f"queue {QUEUE}", self.repaired, ("alarm",)),
                Row("given up", "AMQP", f"queue {DEAD_QUEUE}", self.given_up, ("alarm",)),
                Row("late view", "MQTT", "$replay/earliest/plant/#", self.late_mqtt, ALL),
                Row("late view", "Kafka", "plant._x23_", self.late_kafka, ALL),
                Row("late view", "AMQP", "plant.# from earliest", self.late_amqp, ALL),
            ],
        )

    def begin(self) -> None:
        declare(self.ports)
        for thread in (*self.readers, *self.devices):
            thread.start()

    def come_late(self) -> None:
        """Three views that nobody planned."""
        already = f"came after {self.sent.count:,}"
        views = [
            LateMqtt(self.ports, self.late_mqtt),
            LateKafka(self.ports, self.late_kafka),
            LateAmqp(self.ports, self.late_amqp),
        ]
        for view, seen in zip(views, self.late, strict=True):
            seen.say(already)
            view.start()
        self.readers += views

    def silence(self) -> None:
        """The devices stop; what they sent is answered."""
        for device in self.devices:
            device.stop()
        for device in self.devices:
            device.join()

    def claims(self) -> list[Claim]:
        """What has to be equal at the end."""
        sent = self.sent.seen
        stored = stored_records(self.ports)
        alarms = _of(sent, "alarm")
        return [
            Claim("messages in the log, each written once", sent.total(), stored,
                  sent.total() == stored),
            claim("telemetry: the Kafka group", _of(sent, "telemetry"), self.averages.seen),
            claim("alarms: repaired or given up", alarms, self.repaired.seen + self.given_up.seen),
            claim("everything: the late MQTT replay", sent, self.late_mqtt.seen),
            claim("everything: the late Kafka view", sent, self.late_kafka.seen),
            claim("everything: the late AMQP queue", sent, self.late_amqp.seen),
        ]  # fmt: skip

    def has_all(self) -> bool:
        return all(row.holds for row in self.claims())

    def end(self) -> None:
        for reader in self.readers:
            reader.stop()
        for reader in self.readers:
            reader.join()


def _of(seen: Counter[Said], kind: str) -> Counter[Said]:
    return Counter({said: times for said, times in seen.items() if said.kind == kind})


def play(example: Example, seconds: float, console: Console) -> list[Claim]:
    def watch(live: Live, phase: str, until: Callable[[], bool], limit_s: float) -> None:
        ends = time.monotonic() + limit_s
        while time.monotonic() < ends and not until():
            live.update(example.board.draw(phase, console.width), refresh=True)
            time.sleep(0.1)
        live.update(example.board.draw(phase, console.width), refresh=True)

    with Live(console=console, auto_refresh=False) as live:
        example.begin()
        watch(live, "1/3  the plant works", never, seconds / 2)
        example.come_late()
        watch(live, "2/3  late views come, and read from the beginning", never, seconds / 2)
        example.silence()
        last = "3/3  the machines are silent, everybody has what was sent"
        watch(live, last, example.has_all, CATCH_UP_S)
    return example.claims()


def never() -> bool:
    return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="examples/iot", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=12, help="how long the machines send")
    parser.add_argument("--devices", type=int, default=20, help="how many machines there are")
    parser.add_argument("--rate", type=float, default=10, help="messages a second of each")
    chosen = parser.parse_args()
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="onelog-iot-") as folder,
        running_broker(Path(folder)) as ports,
    ):
        console.print(
            f"[bold]OneLog[/] runs: mqtt {ports.mqtt}, kafka {ports.kafka}, amqp {ports.amqp}\n"
            f"[dim]look in: mosquitto_sub -p {ports.mqtt} -t 'plant/#' -v[/]\n"
        )
        example = Example(ports, chosen.devices, chosen.rate)
        claims = play(example, chosen.seconds, console)
        example.end()
    console.print()
    console.print(draw_claims(claims))
    return 0 if all(row.holds for row in claims) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
