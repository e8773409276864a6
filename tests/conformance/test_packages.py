"""The packages: what is in a wheel and in an sdist, and that a broker runs from either.

`make test` builds the wheel from the kernel that is compiled already and installs it without a
download. `make package` installs both from nothing, with pip and the compiler.
"""

from __future__ import annotations

import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

import onelog
from tests.support.packages import (
    ROOT,
    InstalledBroker,
    built,
    empty_environment,
    linked_environment,
    run,
)

NATIVE = "src/onelog/kernel/_native"
COMPILED = {path.name for path in (ROOT / NATIVE).glob("*.so")}
HOW = {} if COMPILED else {"ONELOG_PURE": "1"}
"""Where nothing can be compiled, the wheel is the interpreted one."""
NATIVE_RUNS = re.compile(r"^ +kernel +compiled,", re.MULTILINE)


def sources_in(folder: str, *endings: str) -> set[str]:
    return {
        path.relative_to(ROOT / "src").as_posix()
        for ending in endings
        for path in (ROOT / "src" / folder).rglob(f"*{ending}")
        if not path.parent.name.endswith(".egg-info")  # of an editable installation
    }


def assert_console_in(names: set[str], below: str) -> None:
    """The built console is there, with every file that its page loads; `built` builds it."""
    page = ROOT / "src" / "onelog" / "admin" / "static" / "index.html"
    if shutil.which("npm") is None and not page.exists():
        return  # nothing here can build it
    files = re.findall(r'"/console/([^"]+)"', page.read_text())
    assert len(files) >= 3
    static = f"{below}onelog/admin/static"
    assert {f"{static}/index.html", *(f"{static}/{name}" for name in files)} <= names


def use(environment: Path, folder: Path) -> str:
    """Serve, publish by each protocol, read it back; what `serve` printed."""
    broker = InstalledBroker(environment, folder)
    try:
        for via in ("mqtt", "kafka", "amqp"):
            broker.command("pub", f"packages/{via}", f"by {via}", "--via", via)
        seen = broker.command("replay", "packages/+", "--via", "kafka").splitlines()
        assert sorted(seen) == ["by amqp", "by kafka", "by mqtt"]
        assert ": ready, " in broker.command("status")
    finally:
        code = broker.stop()
    assert code == 0
    return broker.printed


def test_a_wheel_has_every_module_and_runs_with_what_its_metadata_asks_for(tmp_path):
    wheel = built("wheel", tmp_path / "dist", **HOW)
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = sources_in("", ".py", ".toml", ".yml", ".txt", "py.typed")
    info = f"onelog-{onelog.__version__}.dist-info"
    assert wanted <= names
    assert {"pyspark_onelog.py", "pyspark_onelog_table.py", f"{info}/licenses/LICENSE"} <= names
    assert {Path(name).name for name in names if name.endswith(".so")} == COMPILED
    # Nothing but what runs: no sources of the kernel, no tests, nothing of the tree around.
    others = {name for name in names if not name.startswith(("onelog/", info))}
    assert others == {"pyspark_onelog.py", "pyspark_onelog_table.py"}
    assert not [name for name in names if name.endswith((".pyx", ".pxd", ".h", ".c", ".pyc"))]

    assert_console_in(names, "")
    environment = linked_environment(tmp_path / "environment", wheel)
    printed = use(environment, tmp_path / "broker")
    assert bool(NATIVE_RUNS.search(printed)) == bool(COMPILED)


def test_an_sdist_has_everything_that_the_wheel_is_built_from_and_no_more(tmp_path):
    sdist = built("sdist", tmp_path / "dist")
    with tarfile.open(sdist) as archive:
        members = {row.name.partition("/")[2] for row in archive if row.isfile()}
    first = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"}
    endings = (".py", ".toml", ".yml", ".txt", "py.typed", ".pyx", ".pxd", ".h")
    wanted = {f"src/{name}" for name in sources_in("", *endings) if ".egg-info" not in name}
    assert first | wanted <= members
    assert_console_in(members, "src/")
    others = (".egg-info/", "/admin/static/")
    extra = {name for name in members - first - wanted if not any(part in name for part in others)}
    assert extra == {"PKG-INFO", "setup.cfg"}


@pytest.mark.package
def test_pip_installs_the_wheel_in_an_empty_environment_and_the_broker_runs(tmp_path):
    wheel = built("wheel", tmp_path / "dist")
    environment = empty_environment(tmp_path / "environment", wheel, ROOT / "constraints.txt")
    assert NATIVE_RUNS.search(use(environment, tmp_path / "broker"))


@pytest.mark.package
def test_pip_compiles_the_sdist_in_an_empty_environment_and_the_broker_runs(tmp_path):
    sdist = built("sdist", tmp_path / "dist")
    environment = empty_environment(tmp_path / "environment", sdist, ROOT / "constraints.txt")
    assert NATIVE_RUNS.search(use(environment, tmp_path / "broker"))
    version = run(environment / "bin" / "onelog", "version", folder=tmp_path)
    assert version == f"{onelog.__version__}\n", "no warning: the kernel is that of its sources"
