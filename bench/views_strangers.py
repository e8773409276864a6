"""A thousand consumers that want something else: MQTT sessions, AMQP queues or Kafka groups.

Rules: each is a live client of its own (`viewload.c`) on a topic of its own, which lies in the same
stream as the topics that are published to: a message is there before its consumer is. A group's
fetch waits as long as the broker lets it, so that only what others write can wake it.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from functools import partial

from bench.views_load import LOAD, Target, load

COUNT = 1000
TOPIC = "stranger"
WITHIN_S = 120.0
FETCH_WAIT_MS = 600_000


@contextlib.contextmanager
def _attached(kind: str, target: Target) -> Iterator[None]:
    """A thousand clients of one kind for the length of a block."""
    load(target, "M", "", TOPIC, ("-P", str(COUNT), "-n", str(COUNT), "-w", "0"), WITHIN_S)
    ports = f"{target.mqtt}:{target.kafka}:{target.amqp}"
    extra = f"subs={kind * COUNT} ports={ports} topic={TOPIC} wait={FETCH_WAIT_MS}"
    command = [str(LOAD), "-X", extra, "-P", "0", "-S", str(COUNT), "-x", "-q", "1", "-t", "3600"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        if not said.startswith(f"{COUNT} connections"):
            raise SystemExit(f"a thousand clients of kind {kind} could not be attached: {said}")
        yield
        if process.poll() is not None:
            raise SystemExit(f"the clients of kind {kind} ended: {process.stderr.read()}")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


subscriptions = partial(_attached, "M")
bindings = partial(_attached, "A")
groups = partial(_attached, "K")
