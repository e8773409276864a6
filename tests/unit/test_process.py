"""What the process asks of Python and of the system: a busy thread and a helper are no burden."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from onelog.base.process import SWITCH_S, share_the_interpreter


@pytest.fixture
def switch_interval():
    before = sys.getswitchinterval()
    yield before
    sys.setswitchinterval(before)


def waits_beside_a_busy_thread(times: int) -> float:
    """What a thread that wakes up waits for the interpreter: the median, in seconds."""
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1_000))

    busy = threading.Thread(target=compute)
    busy.start()
    found = []
    try:
        for _ in range(times):
            begun = time.perf_counter()
            time.sleep(0)  # gives the interpreter away, and wants it back at once
            found.append(time.perf_counter() - begun)
    finally:
        over.set()
        busy.join()
    return sorted(found)[times // 2]


def test_a_busy_thread_keeps_the_loop_waiting_for_less_than_half_as_long(switch_interval):
    usual = waits_beside_a_busy_thread(50)
    share_the_interpreter()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    # On a free machine the usual waits may be as short.
    assert waits_beside_a_busy_thread(50) < max(usual / 2, 4 * SWITCH_S)


def test_a_helper_process_has_the_lowest_priority():
    code = "import os; from onelog.base.process import stand_back; stand_back(); print(os.nice(0))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) == 19


def test_the_table_of_open_files_has_its_size_before_clients_come():
    code = (
        "import resource\n"
        "from onelog.base.process import reserve_descriptors\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (min(4_096, hard), hard))\n"
        "reserve_descriptors()\n"
        "print(open('/proc/self/status').read())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    fields = dict(line.split(":", 1) for line in done.stdout.splitlines() if ":" in line)
    assert int(fields["FDSize"]) >= 4_096
