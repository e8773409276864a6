"""A broker without a disk of its own: killed with -9, it goes on in an empty directory elsewhere,
with all that was answered. On SeaweedFS, with `onelog serve` in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid

import pytest

from onelog.objects.store import StoreSettings, open_store
from onelog.protocols.mqtt.packets import Publish
from tests.support.mqtt import connect
from tests.support.s3_server import available, s3_server
from tests.support.stored_brokers import StoredBroker, stored_broker

pytest.importorskip("obstore")
pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(not available(), reason="SeaweedFS is not installed"),
]
DEADLINE_S = 60
PASSWORD = "correct horse battery staple"


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        server.bucket("log")
        server.bucket("chain")
        yield server


@pytest.fixture
def url() -> str:
    return f"s3://log/{uuid.uuid4()}"


async def publish_until_killed(broker: StoredBroker, seconds: float) -> list[str]:
    """Publish one message after the other; the broker is killed meanwhile. Returns what was
    answered."""
    answered: list[str] = []
    publisher = await connect(broker.ports["mqtt"], "publisher")

    async def publish() -> None:
        number = 0
        while True:
            text = f"message {number}"
            assert await publisher.publish("plant/1/temp", text) == 0
            answered.append(text)
            number += 1

    publishing = asyncio.create_task(publish())
    await asyncio.sleep(seconds)  # not to wait for anything: the moment of the kill is the input
    broker.process.kill()
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await publishing
    await publisher.drop()
    broker.process.wait(30)
    return answered


async def test_a_chain_in_a_bucket_of_its_own_holds_all_that_was_answered(s3, url, tmp_path):
    options, chain_url = s3.store_options, f"s3://chain/{uuid.uuid4()}"
    chosen = (f"object.chain_url={chain_url}", "object.settle_ms=300")
    with stored_broker(tmp_path / "a", url, options, *chosen) as first:
        answered = await publish_until_killed(first, 3.0)
    assert len(answered) > 10, "there was no load to speak of"
    with stored_broker(tmp_path / "b", url, options, *chosen) as second:
        assert second.health()[0] == 200
        reader = await connect(second.ports["mqtt"], "reader")
        await reader.subscribe("$replay/earliest/plant/#", qos=1)
        assert await reader.take(len(answered)) == answered
        await reader.disconnect()
        swept = json.loads(second.command("store", "sweep", "--json"))
        assert swept["deleted"] == 0, "everything is too young"
        await asyncio.to_thread(second.stop)
    names = {
        where: {
            row.name.partition("/")[0]
            for row in open_store(StoreSettings(url=where, options=options)).list("")
        }
        for where in (url, chain_url)
    }
    assert names == {url: {"d"}, chain_url: {"n"}}
    # Without the bucket of the chain the history is not there: the broker says so, and writes
    # nothing.
    lost = StoredBroker(tmp_path / "a", url, options)
    try:
        assert await asyncio.to_thread(lost.process.wait, DEADLINE_S) != 0, lost.output
        lost.drain()
        assert "has no chain" in lost.output, lost.output
    finally:
        lost.kill()


async def test_a_killed_broker_goes_on_in_an_empty_directory_with_all_that_was_answered(
    s3, url, tmp_path
):
    options = s3.store_options
    with stored_broker(tmp_path / "a", url, options) as first:
        first.command("user", "add", "anna", "--password-stdin", text=PASSWORD)
        session = await connect(
            first.ports["mqtt"], "session", clean=False, expiry_s=3600,
            username="anna", password=PASSWORD.encode(),
        )  # fmt: skip
        assert await session.subscribe("plant/#", qos=1) == 1
        maker = await connect(first.ports["mqtt"], "maker")
        assert await maker.publish("plant/1/name", "kiln", retain=True) == 0
        assert await session.take(1) == ["kiln"]
        await session.drop()
        await maker.disconnect()
        answered = await publish_until_killed(first, 2.0)
    assert len(answered) > 10, "there was no load to speak of"
    with stored_broker(tmp_path / "b", url, options) as second:
        assert second.health()[0] == 200
        assert "anna" in second.command("user", "list")
        session = await connect(
            second.ports["mqtt"], "session", clean=False, expiry_s=3600,
            username="anna", password=PASSWORD.encode(),
        )  # fmt: skip
        assert session.connack.session_present
        found = await session.take(len(answered))
        assert found == answered, "an answered message is lost, twice or out of order"
        await session.sync()
        rest = [row for row in session._arrived if isinstance(row, Publish)]
        assert len(rest) <= 1  # the one whose answer the kill took
        reader = await connect(second.ports["mqtt"], "reader")
        await reader.subscribe("plant/1/name", qos=1)
        assert await reader.take(1) == ["kiln"]
        for row in rest:
            await session.acknowledge(row)
        await session.disconnect()
        await reader.disconnect()
        await asyncio.to_thread(second.stop)
    # A third time, after a clean stop: what was acknowledged does not come again.
    with stored_broker(tmp_path / "c", url, options) as third:
        session = await connect(
            third.ports["mqtt"], "session", clean=False, expiry_s=3600,
            username="anna", password=PASSWORD.encode(),
        )  # fmt: skip
        assert await session.is_silent()
        await session.disconnect()


async def test_an_idle_broker_that_was_replaced_is_not_ready_and_says_so_in_short(
    s3, url, tmp_path
):
    options = s3.store_options
    with stored_broker(tmp_path / "a", url, options) as old:
        client = await connect(old.ports["mqtt"], "one")
        assert await client.publish("a/b", "first") == 0
        assert old.health()[0] == 200
        with stored_broker(tmp_path / "b", url, options):
            status, text = 200, ""
            ends = time.monotonic() + DEADLINE_S
            while status == 200 and time.monotonic() < ends:
                status, text = await asyncio.to_thread(old.health)
                await asyncio.sleep(0.1)
            assert status == 503, "an idle broker that was replaced stays ready"
            assert "another broker took over" in text
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                assert await client.publish("a/b", "never") != 0
        await client.drop()
        await asyncio.to_thread(old.stop)
        old.drain()
        said = "".join(old.lines)
        assert "Traceback" not in said, said
        told = [line for line in old.lines if "another broker took over" in line]
        assert len(told) <= 4, "".join(told)  # the log's and the metadata's chain
        assert "stop one of them" in told[0]


async def test_a_broker_that_was_replaced_is_fenced_answers_nothing_and_says_so(s3, url, tmp_path):
    options = s3.store_options
    with stored_broker(tmp_path / "a", url, options) as old:
        client = await connect(old.ports["mqtt"], "one")
        assert await client.publish("a/b", "first") == 0
        with stored_broker(tmp_path / "b", url, options) as new:
            other = await connect(new.ports["mqtt"], "two")
            assert await other.publish("a/b", "second") == 0
            code = None
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                code = await client.publish("a/b", "never")
            assert code != 0
            status, text = 200, ""
            ends = time.monotonic() + DEADLINE_S
            while status == 200 and time.monotonic() < ends:
                status, text = await asyncio.to_thread(old.health)
                await asyncio.sleep(0.1)
            assert status == 503
            assert "another broker took over" in json.dumps(text)
            reader = await connect(new.ports["mqtt"], "three", clean=False, expiry_s=60)
            await reader.subscribe("a/b", qos=1)
            assert await other.publish("a/b", "third") == 0
            assert await reader.take(1) == ["third"]
            await reader.drop()
            await other.drop()
        await client.drop()


async def test_a_wrong_prefix_is_refused_with_what_is_missing(s3, url, tmp_path):
    """Metadata on the disk names streams of the engine, and the store has no chain."""
    options = s3.store_options
    local = ("metadata.url=",)
    with stored_broker(tmp_path / "a", url, options, *local) as broker:
        client = await connect(broker.ports["mqtt"], "one")
        assert await client.publish("a/b", "first") == 0
        await client.drop()
        await asyncio.to_thread(broker.stop)
    other = StoredBroker(tmp_path / "a", f"{url}-typo", options, *local)
    assert await asyncio.to_thread(other.process.wait, DEADLINE_S) != 0
    other.drain()
    assert "has no chain" in other.output
    assert "streams of the engine object that held messages" in other.output
    with stored_broker(tmp_path / "a", url, options, *local) as broker:
        assert broker.health()[0] == 200
