"""A Kafka client without behaviour: any request at any version, and the answer as it came."""

from __future__ import annotations

import socket
import struct
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from onelog.protocols.kafka.apis import APIS, ApiKey
from tests.support.kafka_entities import written


class Wire:
    """One connection. Requests are given in kio's names; what a version lacks is left out."""

    def __init__(self, port: int, client_id: str = "wire", timeout_s: float = 30.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._client_id = client_id.encode()
        self._number = 0
        self._buffer = b""

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def ask(self, key: ApiKey, version: int, /, **body: Any) -> Any:
        """Send a request and wait for its answer."""
        self.send(key, version, **body)
        return self.answer(key, version)

    def send(self, key: ApiKey, version: int, /, **body: Any) -> None:
        data = written(load_request_schema(int(key), version), body)
        self._send(key, version, b"\0" + data if version >= APIS[key].flexible else data)

    def ask_bytes(self, key: ApiKey, body: bytes) -> bytes:
        """A private request (version 0) and its answer, which kio knows nothing of."""
        self._send(key, 0, body)
        return self._frame()[4:]

    def _send(self, key: ApiKey, version: int, data: bytes) -> None:
        self._number += 1
        head = struct.pack(">hhih", key, version, self._number, len(self._client_id))
        payload = head + self._client_id + data
        self._socket.sendall(struct.pack(">i", len(payload)) + payload)

    def _frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._read(4))
        frame = self._read(size)
        (number,) = struct.unpack_from(">i", frame)
        assert number == self._number
        return frame

    def answer(self, key: ApiKey, version: int) -> Any:
        frame = self._frame()
        size = len(frame)
        at = 5 if version >= APIS[key].flexible else 4
        body, read = entity_reader(load_response_schema(int(key), version))(frame, at)
        assert at + read == size, "bytes are left"
        return body

    def _read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self._socket.recv(65_536)
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            self._buffer += data
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found
