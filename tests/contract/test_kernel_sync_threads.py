"""What both kernels promise about the threads that sync files."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import select
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onelog.kernel.types import OPEN_SYNCS_MAX
from onelog.storage.files import OpenFile
from tests.support.disks import GatedDisk

WAIT_S = 20


@pytest.fixture(params=["pure", "_native"])
def kernel(request: pytest.FixtureRequest) -> Any:
    """The kernel, interpreted and compiled; skipped where it was not built."""
    return pytest.importorskip(f"onelog.kernel.{request.param}", exc_type=ImportError)


@pytest.fixture
def native() -> Any:
    """The compiled kernel."""
    return pytest.importorskip("onelog.kernel._native", exc_type=ImportError)


@pytest.fixture
def disk() -> GatedDisk:
    return GatedDisk()


def file_of(tmp_path: Path, name: str = "0.log") -> OpenFile:
    file = OpenFile(str(tmp_path / name), os.O_RDWR | os.O_CREAT)
    file.write(b"some bytes", 0)
    return file


def is_readable(threads: Any, timeout_s: float = 0) -> bool:
    return bool(select.select([threads.fileno()], [], [], timeout_s)[0])


def taken(threads: Any, count: int = 1) -> list[Any]:
    """The next tickets, as a loop takes them."""
    found: list[Any] = []
    while len(found) < count:
        assert is_readable(threads, WAIT_S), f"{len(found)} of {count} answers came"
        found += threads.take()
    assert len(found) == count
    return found


def ignore(_ticket: Any) -> None:
    pass


def test_a_file_is_synced_and_its_ticket_comes_back(kernel: Any, tmp_path: Path) -> None:
    threads, file = kernel.SyncThreads(2), file_of(tmp_path)
    ticket = threads.ask(file, ignore)
    assert taken(threads) == [ticket]
    assert (ticket.error, ticket.file, ticket.done) == (0, file, ignore)
    assert not is_readable(threads)
    assert threads.take() == []
    threads.close()


def test_the_error_of_the_system_is_the_error_of_the_ticket(kernel: Any) -> None:
    """A pipe cannot be synced: the system says so."""
    threads = kernel.SyncThreads(1)
    read_fd, write_fd = os.pipe()
    threads.ask(SimpleNamespace(fd=write_fd), ignore)
    (ticket,) = taken(threads)
    assert ticket.error == errno.EINVAL
    threads.close()
    os.close(read_fd)
    os.close(write_fd)


def test_all_that_is_ready_is_one_answer(kernel: Any, disk: GatedDisk, tmp_path: Path) -> None:
    threads, file = kernel.SyncThreads(3, disk.address), file_of(tmp_path)
    asked = [threads.ask(file, ignore) for _ in range(9)]
    disk.wait_entered(3)
    assert not is_readable(threads)
    assert disk.running_max == 3, "as many syncs at a time as there are threads"
    disk.let_go(9)
    for ticket in asked:
        ticket.wait()
    found = taken(threads, 9)
    assert {id(ticket) for ticket in found} == {id(ticket) for ticket in asked}
    threads.close()


def test_a_file_stays_open_until_its_sync_was_taken(
    kernel: Any, disk: GatedDisk, tmp_path: Path
) -> None:
    threads, file = kernel.SyncThreads(1, disk.address), file_of(tmp_path)
    fd = file.fd
    threads.ask(file, ignore)
    del file
    gc.collect()
    disk.wait_entered()
    os.fstat(fd)
    assert file_of(tmp_path, "1.log").fd != fd, "the number belongs to no other file"
    disk.let_go()
    assert is_readable(threads, WAIT_S)
    os.fstat(fd)
    assert len(taken(threads)) == 1
    gc.collect()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
    threads.close()


def test_whoever_waits_for_a_sync_has_its_error_before_anybody_takes_it(
    kernel: Any, disk: GatedDisk, tmp_path: Path
) -> None:
    threads = kernel.SyncThreads(1, disk.address)
    ticket = threads.ask(file_of(tmp_path), ignore)
    disk.error = errno.EIO
    found: list[int] = []

    def wait() -> None:
        ticket.wait()
        found.append(ticket.error)

    waiters = [threading.Thread(target=wait) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    disk.wait_entered()
    assert not found
    disk.let_go()
    for waiter in waiters:
        waiter.join(WAIT_S)
    assert found == [errno.EIO] * 3
    assert taken(threads) == [ticket]
    ticket.wait()  # returns at once
    assert ticket.error == errno.EIO
    threads.close()


def test_closing_waits_for_what_was_asked_and_nothing_more_is_taken_on(
    kernel: Any, disk: GatedDisk, tmp_path: Path
) -> None:
    threads, file = kernel.SyncThreads(1, disk.address), file_of(tmp_path)
    asked = [threads.ask(file, ignore) for _ in range(3)]
    closing = threading.Thread(target=threads.close)
    closing.start()
    disk.wait_entered()
    assert closing.is_alive()
    disk.let_go(3)
    closing.join(WAIT_S)
    assert not closing.is_alive()
    assert threads.ask(file, ignore) is None
    assert taken(threads, 3) == asked
    threads.close()  # nothing is left to do


def test_syncs_that_nobody_takes_are_bounded(kernel: Any, tmp_path: Path) -> None:
    disk = GatedDisk(is_open=True)
    threads, file = kernel.SyncThreads(1, disk.address), file_of(tmp_path)
    for _ in range(OPEN_SYNCS_MAX):
        assert threads.ask(file, ignore) is not None
    assert threads.ask(file, ignore) is None
    first = threads.ask
    taken(threads, OPEN_SYNCS_MAX)
    assert first(file, ignore) is not None
    threads.close()


def test_threads_that_are_forgotten_leave_no_descriptor(kernel: Any, tmp_path: Path) -> None:
    threads = kernel.SyncThreads(2)
    threads.ask(file_of(tmp_path), ignore)
    taken(threads)
    fd = threads.fileno()
    if kernel.__name__.endswith("pure"):
        threads.close()  # interpreted threads hold on to what they work for
    del threads
    gc.collect()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_a_disk_of_a_test_is_never_passed_over(
    kernel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever replaces `os.fdatasync` sees every sync, or nothing is asked of the threads."""
    threads, seen = kernel.SyncThreads(1), []
    monkeypatch.setattr(os, "fdatasync", seen.append)
    ticket = threads.ask(file := file_of(tmp_path), ignore)
    if ticket is not None:
        taken(threads)
        assert seen == [file.fd]
    threads.close()


def test_a_sync_needs_no_interpreter(native: Any, tmp_path: Path) -> None:
    """The whole process waits here with the interpreter's lock held, and the answer comes."""

    class Polled(ctypes.Structure):
        _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("seen", ctypes.c_short))

    holds_the_lock = ctypes.PyDLL(None).poll
    threads = native.SyncThreads(1)
    threads.ask(file_of(tmp_path), ignore)
    polled = Polled(threads.fileno(), select.POLLIN, 0)
    assert holds_the_lock(ctypes.byref(polled), 1, WAIT_S * 1000) == 1
    assert len(threads.take()) == 1
    threads.close()


HANGS = """
import ctypes, os, sys
from types import SimpleNamespace
from onelog.kernel._native import SyncThreads
hangs = ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p).value
threads = SyncThreads(2, hangs)
ticket = threads.ask(SimpleNamespace(fd=0), print)
"""
FORKS = """
child = os.fork()
if child == 0:
    assert threads.ask(SimpleNamespace(fd=0), print) is None
    assert threads.take() == []
    ticket.wait()
    threads.close()
    del threads, ticket
    sys.exit(7)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(("more", "code"), [("", 0), (FORKS, 7)], ids=["ends", "forks"])
def test_a_process_whose_disk_hangs_ends(native: Any, more: str, code: int) -> None:
    command = [sys.executable, "-W", "ignore", "-c", HANGS + more]
    ended = subprocess.run(command, check=False, timeout=60, capture_output=True)
    assert (ended.returncode, ended.stderr) == (code, b"")


def test_threads_that_cannot_be_made_are_an_error(native: Any) -> None:
    with contextlib.ExitStack() as opened:
        import resource  # noqa: PLC0415

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        opened.callback(os.close, lowest)
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        with pytest.raises(OSError, match="Too many open files"):
            native.SyncThreads(1)
