"""Errors that are kept and raised more than once."""

from __future__ import annotations

import asyncio
import shutil

import msgspec
import pytest

from onelog.base.errors import OnelogError, PartitionStopped, StorageError, again, without_frames
from onelog.broker import LOCAL, Message
from tests.support.brokers import FAST, running

WAIT_S = 20


def raised(error: BaseException) -> BaseException:
    try:
        raise error  # noqa: TRY301
    except BaseException as found:  # noqa: BLE001 - it now has frames
        return found


def test_frames_are_taken_from_errors_that_are_each_others_cause():
    kept, other = raised(StorageError("kept")), raised(OSError("other"))
    kept.__cause__, other.__context__ = other, kept
    assert without_frames(kept) is kept  # it ends
    assert kept.__traceback__ is None
    assert other.__traceback__ is None


def raise_because(kept: BaseException, number: int) -> None:
    try:
        raise OSError(number)  # noqa: TRY301
    except OSError as cause:
        raise again(kept) from cause


def test_an_error_that_is_raised_again_and_again_collects_no_causes():
    kept = PartitionStopped("kept")
    for number in range(3):
        with pytest.raises(PartitionStopped) as found:
            raise_because(kept, number)
        cause = found.value.__cause__
        assert isinstance(cause, OSError)
        assert cause.args == (number,)
        assert cause.__context__ is None
    assert again(kept).__cause__ is None
    assert kept.__context__ is None


async def test_publishers_get_errors_and_the_loop_goes_on_when_the_data_directory_is_gone(tmp_path):
    small = msgspec.structs.replace(FAST.main, segment_bytes=65_536)
    settings = msgspec.structs.replace(FAST, main=small)
    async with running(tmp_path / "data", settings) as broker:
        await broker.publish(Message("a", b"1"), principal=LOCAL)
        shutil.rmtree(tmp_path / "data")
        refused = 0

        async def publish() -> None:
            nonlocal refused
            for number in range(300):
                message = Message(f"a/{number}", b"x" * 20_000)
                try:
                    await broker.publish(message, principal=LOCAL)
                except OnelogError:
                    refused += 1

        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*(publish() for _ in range(5)))
        assert refused > 1_000


@pytest.mark.parametrize("kind", [StorageError, PartitionStopped])
def test_what_is_raised_again_is_the_error_that_was_kept(kind: type[OnelogError]):
    kept = kind("the reason")
    assert again(kept) is kept
    assert str(again(kept)) == "the reason"
