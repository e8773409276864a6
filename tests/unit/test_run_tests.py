"""The counting of `make test`: what passed only when it was repeated is named, and has a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.run_tests import (
    COLD_TESTS,
    FAILED_MAX,
    PURE_CONTRACTS,
    REPEATED_MAX,
    ROOT,
    RUNS,
    Runner,
    Tally,
)

STEADY = "def test_steady(): pass\n"
SHAKY = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_shaky(number):
    mark = Path({folder!r}) / str(number)
    was_there = mark.exists()
    mark.touch()
    assert was_there
"""
BROKEN = "def test_broken(): assert False\n"


def run(folder: Path, *sources: str) -> Tally:
    (folder / "pytest.ini").write_text("[pytest]\n")
    for number, source in enumerate(sources):
        name = f"test_here_{number}.py" if number else "test_here.py"
        (folder / name).write_text(source)
    tally = Tally()
    Runner(folder / "memory", folder).run(tally, {}, ["-n", "0", "-p", "no:asyncio", "-q"])
    return tally


def shaky(folder: Path, count: int) -> str:
    return SHAKY.format(count=count, folder=str(folder))


def test_a_test_that_passes_only_when_repeated_is_named(tmp_path):
    tally = run(tmp_path, STEADY + shaky(tmp_path, 2))
    assert tally.repeated == ["test_here.py::test_shaky[0]", "test_here.py::test_shaky[1]"]
    code, words = tally.verdict()
    assert code == 0
    assert words.startswith("2 passed only when repeated:")
    assert all(name in words for name in tally.repeated)


def test_a_test_that_fails_twice_fails_the_whole_and_is_not_counted(tmp_path):
    tally = run(tmp_path, BROKEN + shaky(tmp_path, 1))
    assert tally.repeated == ["test_here.py::test_shaky[0]"]
    assert tally.verdict()[0] == 1


def test_failures_in_many_files_are_not_repeated(tmp_path):
    tally = run(tmp_path, *[BROKEN] * (FAILED_MAX + 1))
    assert not tally.repeated
    assert tally.verdict()[0] == 1


def test_many_failures_in_one_file_are_repeated_and_count_once(tmp_path):
    count = FAILED_MAX + REPEATED_MAX
    tally = run(tmp_path, shaky(tmp_path, count))
    assert len(tally.repeated) == count
    assert tally.verdict()[0] == 0


@pytest.mark.parametrize(("count", "code"), [(0, 0), (REPEATED_MAX, 0), (REPEATED_MAX + 1, 1)])
def test_repeated_tests_in_too_many_files_over_all_runs_are_a_failure(count, code):
    tally = Tally(repeated=[f"test_{number}.py::test_it" for number in range(count)])
    assert tally.verdict()[0] == code
    assert Tally(4, tally.repeated).verdict()[0] == 4


def test_the_interpreted_kernel_has_all_unit_tests_and_contracts_that_exist():
    environment, arguments = RUNS["pure"]
    assert (environment, arguments) == ({"ONELOG_PURE": "1"}, ("tests/unit", *PURE_CONTRACTS))
    assert [name for name in PURE_CONTRACTS if not (ROOT / name).is_file()] == []


def test_the_cold_run_asks_for_cold_logs_and_for_files_that_exist():
    _environment, arguments = RUNS["cold"]
    assert arguments == ("--cold", *COLD_TESTS)
    assert [name for name in COLD_TESTS if not (ROOT / name).is_file()] == []
    assert " cold all " in (ROOT / "Makefile").read_text()
