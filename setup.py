"""Build of the compiled kernel; everything else about the project is in pyproject.toml.

`ONELOG_PURE=1` skips it, `ONELOG_REQUIRE_NATIVE=1` makes a failure fatal. Without either, a machine
that cannot compile gets the interpreted kernel. `ONELOG_PROGRESS=FILE` tells what is being done
there: pip shows nothing of a build that works, and this one takes a minute or more.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/onelog/kernel/_native")
CYTHON_DIR = Path("build/cython")
MODULES = [
    "crc",
    "source",
    "scan",
    "records",
    "columns",
    "build",
    "keep",
    "wire",
    "filters",
    "topics",
    "nodes",
    "trie",
    "stage",
    "mqtt_output",
    "mqtt_input",
    "mqtt_plan",
    "mqtt_delivery",
    "mqtt_fanout",
    "amqp_wire",
    "amqp_delivery",
    "kafka_request",
    "kafka_shape",
    "kafka_batch",
    "kafka_response",
    "kafka_tag",
    "kafka_view",
]
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
}


def tell(line: str) -> None:
    """Write a line of progress where somebody may watch."""
    try:
        with Path(os.environ.get("ONELOG_PROGRESS") or os.devnull).open("a") as out:
            out.write(f"onelog:   {line}\n")
    except OSError:
        pass  # nobody watches


class BuildKernel(build_ext):
    """Setuptools forgives an optional module that does not compile, but not a missing compiler."""

    def build_extension(self, ext: Extension) -> None:
        number = self.extensions.index(ext) + 1
        tell(f"compiling {ext.name.rpartition('.')[2]} ({number} of {len(self.extensions)})")
        try:
            super().build_extension(ext)
        except OSError as error:
            if not ext.optional:
                raise
            self.warn(f"{ext.name} is not compiled, the interpreted kernel stands in: {error}")


def extensions() -> list[Extension]:
    if os.environ.get("ONELOG_PURE") == "1":
        return []
    required = os.environ.get("ONELOG_REQUIRE_NATIVE") == "1"
    try:
        from Cython.Build import cythonize  # noqa: PLC0415
    except ImportError:
        if required:
            raise
        return []
    # No -march: a wheel runs on every processor; the CRC chooses at run time.
    flags = ["/O2"] if sys.platform == "win32" else ["-O3", "-fvisibility=hidden"]
    shared = sorted(str(path) for path in NATIVE.glob("*.pxd"))
    modules = [
        Extension(
            f"onelog.kernel._native.{name}",
            [str(NATIVE / f"{name}.pyx")],
            depends=[str(NATIVE / f"{name}.pyx"), *shared],
            extra_compile_args=flags,
        )
        for name in MODULES
    ]
    if not all((CYTHON_DIR / NATIVE / f"{name}.c").exists() for name in MODULES):
        tell(f"translating {len(modules)} modules to C")
    modules = cythonize(modules, build_dir=str(CYTHON_DIR), compiler_directives=DIRECTIVES)
    for module in modules:
        module.optional = not required  # Cython drops it when it is given above
    return modules


setup(
    cmdclass={"build_ext": BuildKernel},
    ext_modules=extensions(),
    exclude_package_data={"": ["*.c", "*.pyx", "*.pxd"]},
)
