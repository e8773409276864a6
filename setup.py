"""Build of the compiled kernel; everything else about the project is in pyproject.toml.

`ONELOG_PURE=1` skips it, `ONELOG_REQUIRE_NATIVE=1` makes a failure fatal. Without either, a machine
that cannot compile gets the interpreted kernel. `ONELOG_PROGRESS=FILE` tells what is being done
there: pip shows nothing of a build that works, and this one takes a minute of every core.
Every module carries the digest of its sources (`kernel/origin.py`); one that carries another is
compiled anew, whatever the times of the files say.
"""

import importlib.util
import multiprocessing
import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/onelog/kernel/_native")
HEADER = NATIVE / "origin.h"
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
    "mqtt_acks",
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


def load_origin():
    """The module that knows the digests; the package around it cannot be imported yet."""
    spec = importlib.util.spec_from_file_location("onelog_origin", NATIVE.parent / "origin.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


origin = load_origin()


def drop_other(module: Path, name: str) -> None:
    """Remove a compiled module of other sources; whoever runs on the file keeps it."""
    if module.exists() and origin.carried(module) != origin.digest(NATIVE, name):
        module.unlink()


def translate(modules: list[Extension]) -> list[Extension]:
    """The modules with their C; what was translated from other sources is translated anew."""
    from Cython.Build import cythonize  # noqa: PLC0415

    stamps = {CYTHON_DIR / NATIVE / f"{name}.sources": name for name in MODULES}
    wanted = {stamp: origin.digest(NATIVE, name) for stamp, name in stamps.items()}
    other = [row for row in wanted if not row.exists() or row.read_text() != wanted[row]]
    if other:
        tell(f"translating {len(other)} modules to C")
    for stamp in other:
        stamp.with_suffix(".c").unlink(missing_ok=True)
    # Where processes are not forked they begin with the main module, and that is pip's here.
    workers = (os.cpu_count() or 1) if multiprocessing.get_start_method() == "fork" else 0
    made = cythonize(
        modules, nthreads=workers, build_dir=str(CYTHON_DIR), compiler_directives=DIRECTIVES
    )
    for stamp in other:
        stamp.write_text(wanted[stamp])
    return made


class BuildKernel(build_ext):
    """Setuptools forgives an optional module that does not compile, but not a missing compiler."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or True

    def build_extension(self, ext: Extension) -> None:
        name, number = ext.name.rpartition(".")[2], self.extensions.index(ext) + 1
        drop_other(Path(self.get_ext_fullpath(ext.name)), name)
        tell(f"compiling {name} ({number} of {len(self.extensions)})")
        try:
            super().build_extension(ext)
        except OSError as error:
            if not ext.optional:
                raise
            self.warn(f"{ext.name} is not compiled, the interpreted kernel stands in: {error}")

    def copy_extensions_to_source(self) -> None:
        for ext in self.extensions:
            name = ext.name.rpartition(".")[2]
            drop_other(NATIVE / Path(self.get_ext_filename(ext.name)).name, name)
        super().copy_extensions_to_source()


def extensions() -> list[Extension]:
    if os.environ.get("ONELOG_PURE") == "1":
        return []
    required = os.environ.get("ONELOG_REQUIRE_NATIVE") == "1"
    if importlib.util.find_spec("Cython") is None:
        if required:
            raise ImportError("the kernel is required, and Cython, which compiles it, is missing")
        return []
    # No -march: a wheel runs on every processor; the CRC chooses at run time.
    if sys.platform == "win32":
        flags = ["/O2", f"/FI{HEADER.resolve()}"]
    else:
        flags = ["-O3", "-fvisibility=hidden", "-include", str(HEADER)]
    shared = [str(path) for pattern in origin.SHARED for path in sorted(NATIVE.glob(pattern))]
    modules = [
        Extension(
            f"onelog.kernel._native.{name}",
            [str(NATIVE / f"{name}.pyx")],
            depends=[str(NATIVE / f"{name}.pyx"), *shared],
            define_macros=[("ONELOG_SOURCES", f'"{origin.digest(NATIVE, name)}"')],
            extra_compile_args=flags,
        )
        for name in MODULES
    ]
    modules = translate(modules)
    for module in modules:
        module.optional = not required  # Cython drops it when it is given above
    return modules


setup(
    cmdclass={"build_ext": BuildKernel},
    ext_modules=extensions(),
    exclude_package_data={"": ["*.c", "*.h", "*.pyx", "*.pxd"]},
)
