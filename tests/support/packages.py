"""Packages of the tree, environments that they are installed in, and a broker that runs from them.

Rules: an environment of a test has what the package asks for, and nothing else. Its processes see
neither the tree nor the environment of the tests.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import sys
import time
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def clean_environment(**more: str) -> dict[str, str]:
    """The environment of a process that knows nothing of this tree."""
    ours = ("ONELOG_", "PYTHONPATH", "VIRTUAL_ENV")
    return {name: text for name, text in os.environ.items() if not name.startswith(ours)} | more


def run(*words: str | Path, folder: Path, **more: str) -> str:
    """Run a program to its end; what it printed. It must succeed."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder, env=clean_environment(**more), capture_output=True, text=True,
        timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def built(kind: str, folder: Path, **more: str) -> Path:
    """The wheel or the sdist of this tree."""
    run(sys.executable, ROOT / "tools" / "package.py", folder, kind, folder=folder.parent, **more)
    (found,) = folder.iterdir()
    return found


def requirements(distribution: metadata.Distribution, extras: set[str]) -> list[Requirement]:
    """What an installed package asks for, with these extras of it."""
    rows = map(Requirement, distribution.requires or ())
    return [
        row
        for row in rows
        if row.marker is None
        or any(row.marker.evaluate({"extra": extra}) for extra in extras or {""})
    ]


def linked_environment(folder: Path, package: Path) -> Path:
    """An environment with `package` and exactly what its metadata asks for, without a download.

    The libraries are links to those of the tests' own environment.
    """
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(*PIP, "--python", python, "install", "--no-deps", "--no-index", package, folder=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (own,) = metadata.distributions(name="onelog", path=[str(site)])
    left = requirements(own, set())
    seen: set[tuple[str, frozenset[str]]] = set()
    while left:
        row = left.pop()
        key = (canonicalize_name(row.name), frozenset(row.extras))
        if key in seen:
            continue
        seen.add(key)
        distribution = metadata.distribution(row.name)
        link(distribution, site)
        left += requirements(distribution, set(row.extras))
    run(*PIP, "--python", python, "check", folder=folder)
    return folder


def link(distribution: metadata.Distribution, site: Path) -> None:
    """Make an installed library part of another environment."""
    names = {path.parts[0] for path in distribution.files or () if path.parts[0] != ".."}
    for name in names - {"__pycache__"}:
        if not (site / name).exists():
            (site / name).symlink_to(Path(str(distribution.locate_file(name))).resolve())


def empty_environment(folder: Path, package: Path, constraints: Path) -> Path:
    """An empty environment in which pip installed `package`, as a user does."""
    venv.create(folder, with_pip=True)
    pinned = ("--constraint", str(constraints))
    run(
        folder / "bin" / "python", "-m", "pip", "--quiet", "install", *pinned, package,
        folder=folder, PIP_CONSTRAINT=str(constraints), ONELOG_REQUIRE_NATIVE="1",
    )  # fmt: skip
    return folder


class InstalledBroker:
    """`onelog serve` of an environment, on ports of its own."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self._onelog = environment / "bin" / "onelog"
        self._folder = folder
        folder.mkdir()
        names = ("admin", "mqtt", "kafka", "amqp")
        chosen = {f"ONELOG_LISTENERS_{name.upper()}_PORT": "0" for name in names}
        self._errors = (folder / "stderr").open("wb")
        self._process = subprocess.Popen(
            [str(self._onelog), "serve"],
            cwd=folder, env=clean_environment(**chosen), stdout=subprocess.PIPE,
            stderr=self._errors,
        )  # fmt: skip
        self.printed = self._read_until_ready()
        found = re.findall(r"^ +(\w+) +\w+://[\w.]+:(\d+)", self.printed, re.MULTILINE)
        self._ports = {f"ONELOG_LISTENERS_{name.upper()}_PORT": port for name, port in found}

    def _read_until_ready(self) -> str:
        assert self._process.stdout is not None
        deadline, printed = time.monotonic() + DEADLINE_S, b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"kernel" not in printed:
                assert selector.select(deadline - time.monotonic()), f"too late: {printed!r}"
                chunk = os.read(self._process.stdout.fileno(), 65536)
                assert chunk, f"{printed!r} {(self._folder / 'stderr').read_text()}"
                printed += chunk
        return printed.decode()

    def command(self, *words: str) -> str:
        """What an `onelog` command of the same environment prints."""
        return run(self._onelog, *words, folder=self._folder, **self._ports)

    def stop(self) -> int:
        """End it; its exit code."""
        self._process.terminate()
        try:
            return self._process.wait(DEADLINE_S)
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._errors.close()
