"""Every `curl` of the pages runs against a real server and is answered."""

from __future__ import annotations

import re
import subprocess
import threading
from pathlib import Path

import httpx2 as httpx
import paho.mqtt.client as mqtt
import pika
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.served import Served

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "docs" / "reference" / "admin.md", *sorted((ROOT / "docs" / "guide").glob("*.md")))
STATUS = re.compile(r"^status (\d{3})$", re.MULTILINE)
NEVER_ENDS = "/events"


def blocks() -> list:
    """The shell blocks of the pages that ask the API."""
    found = []
    for page in PAGES:
        rows = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
        asking = [text for text in rows if re.search(r"^\S*curl|=\$\(curl", text, re.MULTILINE)]
        found += [
            pytest.param(text, id=f"{page.stem}-{number}") for number, text in enumerate(asking, 1)
        ]
    assert len(found) >= 8
    return found


def script(block: str, served: Served, connection: str) -> str:
    """A block as a reader runs it, on the ports of this server; each answer is told apart."""
    text = re.sub(r"(127\.0\.0\.1|localhost):8080", served.url.removeprefix("http://"), block)
    text = text.replace("mqtt-127.0.0.1:50000", connection)
    text = text.replace("/srv/backups", f"{served.path}-backups")
    text = text.replace(".venv/bin/onelog", str(ROOT / ".venv" / "bin" / "onelog"))
    kept, skips = [], False
    for line in text.splitlines():
        begins = re.match(r"(curl|[A-Z]+=)", line)
        skips = not begins if re.match(r"\S", line) else skips
        if not skips:  # the rest of a command is indented
            kept.append(line)
    text = "\n".join(kept)
    shown = r"curl --max-time 20 -w '\nstatus %{http_code}\n' "
    return f"set -u\nA={served.url}/api/v1\n" + re.sub(r"\bcurl ", lambda _match: shown, text)


def furnish(served: Served) -> tuple[str, mqtt.Client]:
    """What the examples talk about; the id of the connection, and the client that holds it."""
    group = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{served.ports['kafka']}",
            "group.id": "billing",
            "enable.auto.commit": False,
        }
    )
    with pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", served.ports["amqp"])
    ) as amqp:
        amqp.channel().queue_declare("dead", durable=True)
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, client_id="sensor-1", clean_session=False
    )
    subscribed = threading.Event()
    client.on_connect = lambda *_said: client.subscribe("sensors/#", 1)
    client.on_subscribe = lambda *_said: subscribed.set()
    client.connect("127.0.0.1", served.ports["mqtt"])
    client.loop_start()
    assert subscribed.wait(30)
    with httpx.Client(base_url=f"{served.url}/api/v1") as ask:
        assert ask.post("/messages", json={"topic": "orders", "text": "1"}).status_code == 201
        group.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
        group.close()
        (row,) = ask.get("/connections?search=sensor-1").json()["items"]
    return row["id"], client


@pytest.mark.parametrize("block", blocks())
def test_every_curl_of_the_pages_is_answered(tmp_path, block):
    with Served(tmp_path / "data") as served:
        connection, client = furnish(served)
        try:
            text = script(block, served, connection)
            if NEVER_ENDS in text:
                text = text.replace("--max-time 20", "--max-time 3")
            done = subprocess.run(
                ["bash", "-c", text],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        finally:
            client.loop_stop()
            client.disconnect()
    told = STATUS.findall(done.stdout)
    assert len(told) == len(re.findall(r"\bcurl ", text)), done.stderr
    assert all(int(status) < 400 for status in told), f"{text}\n{done.stdout}\n{done.stderr}"
    if NEVER_ENDS in text:
        assert "event: rates" in done.stdout
