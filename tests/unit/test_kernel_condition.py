"""A kernel that is missing or stale is said loudly, wherever a person looks, and never else."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from onelog.kernel import origin
from onelog.kernel.condition import missing, stale

SOURCE = Path(__file__).resolve().parents[2] / "src" / "onelog"
NATIVE = SOURCE / "kernel" / "_native"
ENDING = sysconfig.get_config_var("EXT_SUFFIX")
is_compiled = pytest.mark.skipif(
    not (NATIVE / f"crc{ENDING}").exists(), reason="the kernel is not compiled here"
)


def installed(folder: Path, *, compiled: bool = True) -> dict[str, str]:
    """A copy of the package, to be spoilt, and the environment that runs it."""
    left_out = ["__pycache__", "spark", "pipelines"] + ([] if compiled else ["*.so"])
    shutil.copytree(SOURCE, folder / "onelog", ignore=shutil.ignore_patterns(*left_out))
    # The command line names them; this copy is only about the kernel.
    for name in ("spark", "pipelines"):
        (folder / "onelog" / name).symlink_to(SOURCE / name)
    clean = {name: text for name, text in os.environ.items() if not name.startswith("ONELOG_")}
    return clean | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def run(environment: dict[str, str], *arguments: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "onelog", *arguments],
        env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout, done.stderr


@is_compiled
def test_a_kernel_of_the_sources_beside_it_is_told_without_a_word(tmp_path):
    environment = installed(tmp_path)
    for command in ("version", "--version"):
        out, errors = run(environment, command)
        assert re.fullmatch(r"[0-9.]+\n", out)
        assert not errors


def test_a_missing_kernel_is_told_with_the_reason_and_what_to_do(tmp_path):
    environment = installed(tmp_path, compiled=False)
    for command in ("version", "--version"):
        _out, errors = run(environment, command)
        assert "the compiled kernel is missing (No module named" in errors
        assert "40 to 200 times as long" in errors
        assert "make run" in errors


@is_compiled
@pytest.mark.parametrize("changed", ["crc.pyx", "format.pxd", "origin.h"])
def test_a_kernel_that_was_compiled_from_other_sources_is_stale(tmp_path, changed):
    environment = installed(tmp_path)
    with (tmp_path / "onelog" / "kernel" / "_native" / changed).open("a") as out:
        out.write("\n")
    _out, errors = run(environment, "version")
    many = "1 of" if changed == "crc.pyx" else f"{len(list(NATIVE.glob('*.pyx')))} of"
    assert f"the compiled kernel is stale ({many}" in errors
    assert "make run" in errors


@is_compiled
def test_a_module_from_before_the_digests_is_stale(tmp_path):
    (tmp_path / "old.pyx").write_text("")
    (tmp_path / f"old{ENDING}").write_bytes(b"\x7fELF and no mark")
    assert origin.stale_modules(tmp_path) == ["old"]


@is_compiled
def test_without_sources_beside_it_a_kernel_is_what_it_is(tmp_path):
    environment = installed(tmp_path)
    for path in (tmp_path / "onelog" / "kernel" / "_native").glob("*.p[yx][xd]"):
        path.unlink()
    assert not run(environment, "version")[1]


def test_serve_says_it_at_its_start_in_its_log_and_in_status(tmp_path):
    environment = installed(tmp_path, compiled=False)
    ports = [f"--set=listeners.{name}.port=0" for name in ("mqtt", "kafka", "amqp", "admin")]
    off = "--set=listeners.amqp_management.enabled=false"
    command = [sys.executable, "-m", "onelog", "serve", f"--data={tmp_path / 'data'}", *ports, off]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        try:
            admin = next(
                found for line in server.stdout if (found := re.search(r"admin .*:(\d+)/", line))
            )
            _out, errors = run(environment, "status", f"--set=listeners.admin.port={admin[1]}")
            assert "the compiled kernel is missing" in errors
        finally:
            server.send_signal(signal.SIGTERM)
        # `communicate` would leave out what was read ahead of the line above.
        rest, errors = server.stdout.read(), server.stderr.read()
    assert "onelog: warning: the compiled kernel is missing" in rest
    assert len([row for row in errors.splitlines() if "the compiled kernel is missing" in row]) == 1


def test_a_kernel_that_was_asked_to_be_interpreted_says_who_asked(tmp_path):
    environment = installed(tmp_path, compiled=False) | {"ONELOG_PURE": "1"}
    assert "ONELOG_PURE=1 asks for it" in run(environment, "version")[1]


def test_the_words_name_what_happened_and_what_to_do():
    assert not stale([])
    assert "7 of its modules" in stale(list("abcdefg"))
    assert "a, b, c, d, e, …" in stale(list("abcdefg"))
    assert "restart" in missing("x")
