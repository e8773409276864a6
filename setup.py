"""Build of the compiled kernel; everything else about the project is in pyproject.toml.

`ONELOG_PURE=1` skips it, `ONELOG_REQUIRE_NATIVE=1` makes a failure fatal. Without either, a machine
that cannot compile gets the interpreted kernel. `ONELOG_PROGRESS=FILE` tells what is being done
there: pip shows nothing of a build that works, and this one takes a minute of every core.
Every module carries the digest of its sources (`kernel/origin.py`); one that carries another is
compiled anew, whatever the times of the files say. A module beside its sources that carries their
digest is taken as it is: a wheel of a tree whose kernel is built needs no compiler. Commands that
compile nothing (`sdist`, the questions of pip) do not translate anything either.
"""

import importlib.util
import multiprocessing
import os
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/onelog/kernel/_native")
HEADER = NATIVE / "origin.h"
CYTHON_DIR = Path("build/cython")
MODULES = [
    "crc",
    "bus",
    "pages",
    "source",
    "scan",
    "records",
    "columns",
    "build",
    "rebuild",
    "keep",
    "clock",
    "file_end",
    "sync_threads",
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
    "queue_end",
    "mqtt_places",
    "feed",
    "ends",
    "tick",
    "amqp_wire",
    "amqp_delivery",
    "amqp_channel",
    "amqp_confirms",
    "amqp_input",
    "kafka_request",
    "kafka_shape",
    "kafka_batch",
    "kafka_response",
    "kafka_tag",
    "kafka_view",
    "loop_pass",
    "outbox",
    "frame_input",
    "sends",
    "sockets",
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


def carries_its_sources(module: Path, name: str) -> bool:
    """Whether a compiled module is there and was compiled from the sources as they are now."""
    return module.exists() and origin.carried(module) == origin.digest(NATIVE, name)


def drop_other(module: Path, name: str) -> None:
    """Remove a compiled module of other sources; whoever runs on the file keeps it."""
    if not carries_its_sources(module, name):
        module.unlink(missing_ok=True)


def translate(modules: list[Extension]) -> None:
    """Give the modules their C; what was translated from other sources is translated anew."""
    from Cython.Build import cythonize  # noqa: PLC0415

    names = [module.name.rpartition(".")[2] for module in modules]
    stamps = {CYTHON_DIR / NATIVE / f"{name}.sources": name for name in names}
    wanted = {stamp: origin.digest(NATIVE, name) for stamp, name in stamps.items()}
    other = [row for row in wanted if not row.exists() or row.read_text() != wanted[row]]
    if other:
        tell(f"translating {len(other)} modules to C")
    for stamp in other:
        stamp.with_suffix(".c").unlink(missing_ok=True)
    for header in NATIVE.glob("*.h"):
        # Cython copies what is newer, and the copy of another tree may be the newer file.
        copy = CYTHON_DIR / header
        if copy.exists() and copy.read_bytes() != header.read_bytes():
            copy.unlink()
    # Where processes are not forked they begin with the main module, and that is pip's here.
    workers = (os.cpu_count() or 1) if multiprocessing.get_start_method() == "fork" else 0
    made = cythonize(
        modules, nthreads=workers, build_dir=str(CYTHON_DIR), compiler_directives=DIRECTIVES
    )
    for stamp in other:
        stamp.write_text(wanted[stamp])
    sources = {module.name: module.sources for module in made}
    for module in modules:
        module.sources = sources[module.name]


class BuildKernel(build_ext):
    """Setuptools forgives an optional module that does not compile, but not a missing compiler."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or True

    def run(self) -> None:
        """Compile what is not compiled yet."""
        missing = [ext for ext in self.extensions if not self.is_in_place(ext)]
        if missing:
            translate(missing)
        super().run()

    def build_extension(self, ext: Extension) -> None:
        name, number = ext.name.rpartition(".")[2], self.extensions.index(ext) + 1
        target = Path(self.get_ext_fullpath(ext.name))
        drop_other(target, name)
        if self.is_in_place(ext):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.in_place(ext), target)
            return
        tell(f"compiling {name} ({number} of {len(self.extensions)})")
        try:
            super().build_extension(ext)
        except OSError as error:
            if not ext.optional:
                raise
            self.warn(f"{ext.name} is not compiled, the interpreted kernel stands in: {error}")

    def copy_extensions_to_source(self) -> None:
        for ext in self.extensions:
            drop_other(self.in_place(ext), ext.name.rpartition(".")[2])
        super().copy_extensions_to_source()

    def in_place(self, ext: Extension) -> Path:
        """Where a module lies beside its sources."""
        return NATIVE / Path(self.get_ext_filename(ext.name)).name

    def is_in_place(self, ext: Extension) -> bool:
        """Whether the module beside the sources is theirs; `--force` compiles it all the same."""
        name = ext.name.rpartition(".")[2]
        return not self.force and carries_its_sources(self.in_place(ext), name)


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
    return [
        Extension(
            f"onelog.kernel._native.{name}",
            [str(NATIVE / f"{name}.pyx")],
            include_dirs=[str(NATIVE)],
            depends=[str(NATIVE / f"{name}.pyx"), *shared],
            define_macros=[("ONELOG_SOURCES", f'"{origin.digest(NATIVE, name)}"')],
            extra_compile_args=flags,
            optional=not required,
        )
        for name in MODULES
    ]


setup(
    cmdclass={"build_ext": BuildKernel},
    ext_modules=extensions(),
    exclude_package_data={"": ["*.c", "*.h", "*.pyx", "*.pxd"]},
)
