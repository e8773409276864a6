"""A broker without a disk whose keys to the bucket are lost while it runs, and come back.

`onelog serve` in a process of its own, with a file of credentials, behind a proxy of the bucket.
One stream lies in the chain only, one is a table, too.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import deltalake
import pytest

from onelog.lake.storage import Storage
from tests.support.forks import run_onelog
from tests.support.mqtt import connect
from tests.support.s3_server import (
    ACCESS_KEY,
    NEXT_KEY,
    REGION,
    S3Server,
    available,
    s3_server,
    write_keys,
)
from tests.support.store_proxy import FOREVER, StoreProxy, store_proxy
from tests.support.stored_brokers import StoredBroker, stored_broker

pytest.importorskip("obstore")
pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(not available(), reason="SeaweedFS is not installed"),
]
WAIT_S = 60
LOOK_S = 0.5
"""An answer that nothing holds back comes within it."""


@pytest.fixture
def s3(tmp_path):
    with s3_server(tmp_path / "s3") as server:
        server.bucket("log")
        yield server


@pytest.fixture
def proxy(s3):
    with store_proxy(s3.endpoint) as between:
        yield between


async def health_of(broker: StoredBroker, wanted: int) -> str:
    """What readiness says, once its status is the wanted one."""
    async with asyncio.timeout(WAIT_S):
        while True:
            status, text = await asyncio.to_thread(broker.health)
            if status == wanted:
                return text
            await asyncio.sleep(0.2)


def offsets(s3: S3Server) -> list[int]:
    """The offsets of the table, as its own library reads it."""
    where = Storage.of(s3.options).for_delta()
    table = deltalake.DeltaTable("s3://log/broker/lake/history", storage_options=where)
    return sorted(table.to_pyarrow_table(columns=["offset"]).column("offset").to_pylist())


def replayed(broker: StoredBroker, topic: str) -> list[str]:
    done = run_onelog(
        *("replay", topic, "--via", "kafka", "--port", str(broker.ports["kafka"])),
        timeout_s=WAIT_S,
    )
    done.check_returncode()
    return done.stdout.decode().splitlines()


async def test_keys_that_are_lost_while_it_runs_stop_answers_and_lose_nothing(
    s3: S3Server, proxy: StoreProxy, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    write_keys(keys)
    options = {
        "aws_endpoint": proxy.endpoint,
        "aws_region": REGION,
        "credentials_file": str(keys),
    }
    with stored_broker(tmp_path / "data", "s3://log/broker", options) as broker:
        words = ("--tier", "delta", "--tier-commit", "1s", "--tier-table", "history")
        command = asyncio.to_thread
        await command(
            *(broker.command, "stream", "create", "kept", "--capture", "kept/#"),
            *("--partitions", "1", "--local-bytes", "0", *words),
        )
        client = await connect(broker.ports["mqtt"], "maker")
        sent = [f"kept {number}" for number in range(20)]
        for text in sent:
            assert await client.publish("kept/a", text) == 0
        await command(broker.command, "stream", "offload", "kept")
        assert offsets(s3) == list(range(20)), "both processes have their keys"

        write_keys(keys, secret="lost")
        # The keys of before may be in use for a moment: this one may still be answered.
        early = asyncio.create_task(client.publish("plain/a", "early"))
        said = await health_of(broker, 503)
        assert "check the key" in said
        late = asyncio.create_task(client.publish("plain/a", "late"))
        await asyncio.sleep(LOOK_S)
        assert not late.done(), "answered before the bucket had it"
        assert any("object-store-away" in line and "check the key" in line for line in broker.lines)

        write_keys(keys, NEXT_KEY)
        proxy.fault("refuse", FOREVER, key=ACCESS_KEY)
        assert await asyncio.wait_for(early, WAIT_S) == 0
        assert await asyncio.wait_for(late, WAIT_S) == 0
        await health_of(broker, 200)
        sent += [f"after {number}" for number in range(20)]
        for text in sent[20:]:
            assert await client.publish("kept/a", text) == 0
        await client.disconnect()
        await command(broker.command, "stream", "offload", "kept")
        assert offsets(s3) == list(range(40)), "the lake process has the keys of before"
        assert await command(replayed, broker, "kept/a") == sent
        assert await command(replayed, broker, "plain/a") == ["early", "late"]
        assert proxy.faults[0].times > FOREVER - 50, "somebody goes on with the old key"
