"""Renewed certificates on every listener with TLS, of a server that runs."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import httpx2 as httpx
import pytest
import trustme

from onelog.net import tls
from tests.unit.test_admin_app import server_in

LISTENERS = ("admin", "mqtt_tls", "mqtt_wss", "kafka_tls", "amqp_tls")
DEADLINE_S = 20.0


def write(folder, authority) -> None:
    made = authority.issue_cert("127.0.0.1")
    made.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    made.private_key_pem.write_to_path(folder / "key.pem")


async def shown(port: int) -> tuple[bytes, asyncio.StreamWriter]:
    """The certificate that a listener shows to a new connection."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert found is not None
    return found, writer


@contextlib.asynccontextmanager
async def serving(folder):
    settings = ["listeners.mqtt_ws.port=0"]
    for name in LISTENERS:
        settings += [
            f"listeners.{name}.enabled=true",
            f"listeners.{name}.port=0",
            f'listeners.{name}.tls.cert_file="{folder / "cert.pem"}"',
            f'listeners.{name}.tls.key_file="{folder / "key.pem"}"',
        ]
    server, ready = server_in(folder / "data", *settings), asyncio.Event()
    running = asyncio.create_task(server.run(lambda _info: ready.set()))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert ready.is_set(), running.exception()
    ports = {
        row.name: int(row.address.rpartition(":")[2])
        for row in server.info().listeners
        if row.name in LISTENERS
    }
    try:
        yield server, ports
    finally:
        server.request_stop()
        await asyncio.wait_for(running, DEADLINE_S)


@pytest.fixture
def look_always(monkeypatch):
    monkeypatch.setattr(tls, "CHECK_INTERVAL_S", 0.0)


async def test_every_listener_shows_a_renewed_certificate_and_keeps_open_connections(
    tmp_path, look_always
):
    write(tmp_path, trustme.CA())
    async with serving(tmp_path) as (server, ports):
        assert set(ports) == set(LISTENERS)
        before = {name: await shown(port) for name, port in ports.items()}
        write(tmp_path, trustme.CA())
        after = {name: await shown(port) for name, port in ports.items()}
        for name in LISTENERS:
            assert before[name][0] != after[name][0], name
            assert not before[name][1].is_closing(), name
        (tmp_path / "cert.pem").write_text("no certificate")
        broken = {name: await shown(port) for name, port in ports.items()}
        assert {name: row[0] for name, row in broken.items()} == {
            name: row[0] for name, row in after.items()
        }
        places = {row.place for row in server.troubles.standing() if row.kind == tls.TLS_TROUBLE}
        assert places == {f"listeners.{name}.tls" for name in LISTENERS}
        async with httpx.AsyncClient(verify=False) as client:
            health = await client.get(f"https://127.0.0.1:{ports['admin']}/health")
        assert "tls-files" in {row["kind"] for row in health.json()["troubles"]}
        write(tmp_path, trustme.CA())
        mended = {name: await shown(port) for name, port in ports.items()}
        assert all(mended[name][0] != after[name][0] for name in LISTENERS)
        assert not [row for row in server.troubles.standing() if row.kind == tls.TLS_TROUBLE]
        for rows in (before, after, broken, mended):
            for _shown, writer in rows.values():
                writer.close()
