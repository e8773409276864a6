"""The process around the broker: probes during recovery, stop during recovery, the lock."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2 as httpx
import pytest

from onelog import app
from onelog.base.clock import SystemClock
from onelog.base.errors import ConfigError, DataDirLocked, PartitionCorrupt
from onelog.config import load
from onelog.storage.lock import lock_data_dir


def server_in(path: Path, *settings: str) -> app.Server:
    ports = [f"listeners.{name}.port=0" for name in ("admin", "mqtt", "mqtt_ws", "kafka", "amqp")]
    loaded = load(None, {}, [*ports, f'data_dir="{path}"', *settings])
    return app.Server(loaded, SystemClock())


@pytest.fixture
def recovery(monkeypatch):
    """A broker whose recovery takes as long as the test wants."""
    begun, finish = asyncio.Event(), asyncio.Event()

    real = app.open_broker

    async def slow(*arguments, **named):
        begun.set()
        await finish.wait()
        return await real(*arguments, **named)

    monkeypatch.setattr(app, "open_broker", slow)
    return begun, finish


async def test_during_recovery_the_process_is_alive_but_not_ready(tmp_path, recovery):
    begun, finish = recovery
    server, ready = server_in(tmp_path), asyncio.Event()
    running = asyncio.create_task(server.run(lambda _info: ready.set()))
    await begun.wait()
    url = f"http://{server.info().listeners[0].address}"
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{url}/health/live")).status_code == 200
        probe = await client.get(f"{url}/health/ready")
        assert probe.json()["status"] == "failing"
        assert probe.json()["checks"]["state"] == "starting"
        assert probe.status_code == 503
        finish.set()
        await ready.wait()
        assert (await client.get(f"{url}/health/ready")).status_code == 200
    server.request_stop()
    await asyncio.wait_for(running, 10)


async def test_a_stop_during_recovery_ends_it_and_frees_the_directory(tmp_path, recovery):
    begun, _finish = recovery
    server = server_in(tmp_path)
    running = asyncio.create_task(server.run(lambda _info: pytest.fail("it was never ready")))
    await begun.wait()
    server.request_stop()
    await asyncio.wait_for(running, 10)
    with lock_data_dir(tmp_path):
        pass


async def test_a_failed_recovery_ends_the_process_with_its_own_error(tmp_path, monkeypatch):
    async def damaged(*_arguments, **_named) -> None:
        raise PartitionCorrupt("main-3 is damaged at offset 17")

    monkeypatch.setattr(app, "open_broker", damaged)
    with pytest.raises(PartitionCorrupt, match="main-3"):
        await server_in(tmp_path).run(lambda _info: pytest.fail("it was never ready"))
    with lock_data_dir(tmp_path):
        pass


def test_the_lock_is_exclusive_within_one_process_too(tmp_path):
    with lock_data_dir(tmp_path / "new"):
        second = lock_data_dir(tmp_path / "new")
        with pytest.raises(DataDirLocked, match="in use by OneLog process"), second:
            pass
        assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    with lock_data_dir(tmp_path / "new"):
        pass


def test_a_data_directory_below_a_file_is_a_configuration_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"), lock_data_dir(tmp_path / "file/x"):
        pass
