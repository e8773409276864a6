"""MQTT devices of a cluster: kept sessions that go to the node that has them, wherever that is.

Rules: a device goes where an answer sends it, else to the next node, until it is served. Its
session is kept, so what it began at one node it completes at another: a publish of QoS 2 is in the
log once, and a subscription of QoS 1 misses nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from onelog.protocols.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.conformance.mqtt_raw import Raw, unique
from tests.support.cluster_publishers import AWAY_S, BROKEN, REFUSES, ElsewhereError, mqtt_at

KEPT_S = 3600
DEADLINE_S = 60.0
EXACTLY = 2
AT_ONCE = 16
"""Messages without an answer; a node takes more."""
T = TypeVar("T")


class Device:
    """One session at some of these ports; a single port is a node on its own."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = itertools.cycle(ports)
        self._name = unique("device")
        self._opened = contextlib.ExitStack()
        self._raw: Raw | None = None
        self._is_known = False

    def close(self) -> None:
        """Leave without a word."""
        self._opened.close()
        self._raw = None

    def _do(self, work: Callable[[Raw], T]) -> T:
        """Work with the node that serves this session, again at the next one if it must be."""
        deadline = time.monotonic() + DEADLINE_S
        port: int | None = None
        while True:
            try:
                if self._raw is None:
                    self._raw = self._connected(port or next(self._ports))
                return work(self._raw)
            except ElsewhereError as error:
                port = error.port
            except BROKEN as error:
                port = None
                self.close()
                assert time.monotonic() < deadline, repr(error)
            time.sleep(AWAY_S)

    def _connected(self, port: int) -> Raw:
        asked = mqtt_at(port, self._name, clean=False, session_expiry_s=KEPT_S)
        raw = self._opened.enter_context(asked)
        present = raw.connack.session_present
        if self._is_known and not present:
            raise RuntimeError(f"the node at {port} does not know the session {self._name}")
        self._is_known = True
        return raw

    # -- publishing

    def publish(self, topic: str, value: bytes) -> None:
        """Publish once: it is in the log then, and only once."""
        publish = Publish(topic=topic, payload=value, qos=EXACTLY, packet_id=1)
        tries, is_received = 0, False

        def complete(raw: Raw) -> None:
            nonlocal tries, is_received
            if not is_received:
                tries += 1
                raw.send(msgspec.structs.replace(publish, dup=tries > 1))
                reason = raw.get(Pubrec).reason
                assert reason < REFUSES, reason
                is_received = True
            raw.send(Pubrel(publish.packet_id))
            raw.get(Pubcomp)

        self._do(complete)

    def publish_some(self, topic: str, value: bytes, count: int) -> None:
        """Publish something at least so many times; it is in the log then."""

        def send(raw: Raw, rows: range) -> None:
            raw.send(*(Publish(topic=topic, payload=value, qos=1, packet_id=at) for at in rows))
            for _ in rows:
                assert raw.get(Puback).reason < REFUSES

        for begin in range(0, count, AT_ONCE):
            size = min(AT_ONCE, count - begin)
            self._do(partial(send, rows=range(2, 2 + size)))  # 1 is what is published once

    # -- being sent something

    def subscribe(self, text: str) -> None:
        """Take what comes from now on."""
        self._do(lambda raw: raw.subscribe(text, 1))

    def receive(self, count: int) -> list[bytes]:
        """The payloads as they come, until there are so many different ones."""
        found: list[bytes] = []

        def take(raw: Raw) -> None:
            while len(set(found)) < count:
                message = raw.message()
                found.append(message.payload)
                if message.qos:
                    raw.send(Puback(message.packet_id))

        self._do(take)
        return found
