"""Runs pytest for `make test`: what failed is run once more, and what passes only then is counted.

Usage: `python tools/run_tests.py [pure] [checked] [cold] all [arguments of pytest]`. `pure` runs
the unit tests, and the contracts of what stands on the kernel, with the interpreted one, `checked`
the kernel's own with memory that shows who uses what was freed, `cold` those of the protocols on
logs whose first read of everything is cold; the arguments are for `all`.

Rules: the suite starts real processes and waits for real clocks, so a busy machine is given a
second look. A test that passes only then still wants mending: each is named. Where many fail,
nothing is repeated: that is no busy machine. Files are counted, and not tests: the tests of a file
share what they start, so that one server that starts late fails them all.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
REPEATED_MAX: Final = 6
"""Files with tests that may pass only when they are repeated, over all runs together."""
FAILED_MAX: Final = 12
"""Failures in more files than so many are not repeated."""
SHARED: Final = ("-n", str(min(4, 2 * (os.cpu_count() or 1))))
"""Most tests wait for processes and clocks as long as they compute: a core takes two at once."""
TESTS_FAILED: Final = 1
"""What pytest ends with when tests failed, and nothing worse happened."""
KERNEL_TESTS: Final = tuple(
    str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/contract/test_*kernel*.py"))
)
PURE_CONTRACTS: Final = tuple(
    f"tests/contract/test_{name}.py"
    for name in (
        "cursors", "engine", "engine_freezing", "engine_truncation", "queue_consumers", "ways_in",
    )
)  # fmt: skip
"""Contracts of what stands on the kernel; its own take both kernels in any run."""
COLD_TESTS: Final = tuple(
    f"tests/unit/test_{name}.py"
    for name in (
        "amqp_commits", "amqp_elections", "amqp_idle_queue", "amqp_large", "amqp_leaving",
        "amqp_small_frames", "amqp_unread", "broker_meter", "kafka_admin_configs",
        "kafka_admin_topics", "kafka_admin_views", "kafka_answer_room", "kafka_client_storage",
        "kafka_cold_views", "kafka_fetch", "kafka_group_offsets", "kafka_leaders",
        "kafka_long_fetch", "kafka_nodes", "kafka_turns", "kafka_txn_shards",
        "kafka_views_elsewhere", "mqtt_aliases", "mqtt_convoy", "mqtt_delayed", "mqtt_elections",
        "mqtt_one_read", "mqtt_permission", "mqtt_retained", "mqtt_rewrite", "mqtt_rules",
        "mqtt_shares", "mqtt_wills",
    )
)  # fmt: skip
"""Tests of brokers in this process that read what was written; together less than a minute."""
RUNS: Final = {
    "pure": ({"ONELOG_PURE": "1"}, ("tests/unit", *PURE_CONTRACTS)),
    "checked": ({"PYTHONMALLOC": "debug"}, KERNEL_TESTS),
    "cold": ({}, ("--cold", *COLD_TESTS)),
    "all": ({}, ()),
}


def files_of(tests: Iterable[str]) -> set[str]:
    """The files that these tests stand in."""
    return {name.partition("::")[0] for name in tests}


@dataclass
class Tally:
    """What came of all runs."""

    code: int = 0
    repeated: list[str] = field(default_factory=list)
    """Names of tests that passed only when they were repeated."""

    def verdict(self) -> tuple[int, str]:
        """What the process ends with, and what it says at the end."""
        if not self.repeated:
            return self.code, "none passed only when repeated"
        many = len(files_of(self.repeated)) > REPEATED_MAX
        lines = [f"{len(self.repeated)} passed only when repeated:", *self.repeated]
        if many:
            lines.append(f"in more than {REPEATED_MAX} files: that is a failure")
        return self.code or int(many), "\n  ".join(lines)


class Runner:
    """Runs pytest with a memory of its own, so that failures of earlier days do not count."""

    def __init__(self, memory: Path, folder: Path = ROOT) -> None:
        self._memory = memory
        self._folder = folder

    def run(self, tally: Tally, environment: dict[str, str], arguments: list[str]) -> None:
        """One run, and what failed of it once more."""
        shutil.rmtree(self._memory, ignore_errors=True)
        code = self._pytest(environment, [*SHARED, *arguments])
        failed = self._failed()
        if code == TESTS_FAILED and 0 < len(files_of(failed)) <= FAILED_MAX:
            again = ["--last-failed", "--last-failed-no-failures", "none", *arguments]
            code = self._pytest(environment, again)
            still = self._failed()
            tally.repeated += sorted(failed - still)
        tally.code = tally.code or code

    def _pytest(self, environment: dict[str, str], arguments: list[str]) -> int:
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={self._memory}", *arguments]
        return subprocess.run(  # noqa: S603 - our own interpreter
            command, cwd=self._folder, env=os.environ | environment, check=False
        ).returncode

    def _failed(self) -> set[str]:
        memory = self._memory / "v" / "cache" / "lastfailed"
        return set(json.loads(memory.read_text())) if memory.exists() else set()


def main() -> None:
    """Run what the command line names."""
    arguments = sys.argv[1:]
    tally = Tally()
    runner = Runner(ROOT / "build" / "tests-memory")
    while arguments and arguments[0] in RUNS:
        name = arguments.pop(0)
        environment, chosen = RUNS[name]
        runner.run(tally, environment, [*chosen, *(arguments if name == "all" else ())])
    code, words = tally.verdict()
    sys.stdout.write(f"\n{words}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
