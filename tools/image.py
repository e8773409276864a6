"""Builds the image of `deploy/docker` without an engine, and uses it: `make image-check`, as root.

Rules: a base system of Debian (debootstrap) stands for the image that FROM names. Each step of the
Dockerfile runs in a chroot of it, as an engine would run it; a step that is not known here is an
error. Then the broker is started as the image says (its user, directory, environment and command),
in a network of its own: its health check passes, a user is made, a message goes in by MQTT and
comes out by Kafka, and SIGTERM ends it with 0. What an engine does beyond that (layers, registry,
limits) is not looked at.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
PACKAGES = "python3,python3-pip,python3-venv,python3-dev,ca-certificates"
"""What the image that FROM names has beside Debian."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TRUSTING = ("PIP_CERT", "NODE_EXTRA_CA_CERTS")
"""Variables that name the certificates which pip and npm trust: those of this machine."""
NOTES = ("ARG", "EXPOSE", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD")
"""Steps that change no file."""


@dataclass
class Stage:
    """A system that steps change, and what they said of it."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"
    notes: dict[str, str] = field(default_factory=dict)


def run(*words: str | Path) -> None:
    """Run a program; an error ends the build."""
    subprocess.run(words, env={"PATH": PATH}, check=True)  # noqa: S603 - ours


def make_base(root: Path) -> None:
    """The system that FROM names: Debian with Python and pip, which may install."""
    run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", root)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    for mark in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        mark.unlink()
    for name in ("resolv.conf", "ssl/certs/ca-certificates.crt"):  # as this machine reaches others
        shutil.copy(Path("/etc") / name, root / "etc" / name)


def steps() -> list[tuple[str, str]]:
    """The steps of the Dockerfile: the word, and the rest of its line."""
    rows = [row for row in DOCKERFILE.read_text().splitlines() if not row.startswith("#")]
    whole = re.sub(r"\\\n", " ", "\n".join(rows))
    parts = (row.strip().partition(" ") for row in whole.splitlines() if row.strip())
    return [(word.upper(), " ".join(rest.split())) for word, _space, rest in parts]


def is_left_out(path: Path) -> bool:
    """Whether the context has no such file, by the rules of Dockerfile.dockerignore that deny."""
    text = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text()
    denied = [row for row in text.splitlines() if row not in ("", "*") and row[0] not in "#!"]
    name = path.relative_to(ROOT).as_posix()
    return any(fnmatch(path.name, row.removeprefix("**/")) or name == row for row in denied)


def copy(stage: Stage, rest: str) -> None:
    """A COPY step: files into a folder, or one file or folder to a name."""
    *sources, target = rest.split()
    place = stage.root / (Path(stage.folder) / target).as_posix().lstrip("/")
    for source in map(ROOT.joinpath, sources):
        if source.is_dir():
            shutil.copytree(
                source, place, dirs_exist_ok=True,
                ignore=lambda folder, names: [n for n in names if is_left_out(Path(folder, n))],
            )  # fmt: skip
            continue
        name = place / source.name if target.endswith("/") else place
        name.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, name)


def inside(stage: Stage, command: str, binds: dict[str, Path] | None = None) -> str:
    """The words of a shell that run a command in the system of a stage."""
    text = f"mount --bind /dev {stage.root}/dev; mount -t proc proc {stage.root}/proc; "
    for target, source in (binds or {}).items():
        (stage.root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
        text += f"mount --bind {source} {stage.root}{target}; "
    trusted = dict.fromkeys(TRUSTING, "/etc/ssl/certs/ca-certificates.crt")
    given = {"PATH": PATH, **trusted, **stage.env}
    words = shlex.join(f"{name}={value}" for name, value in given.items())
    shell = shlex.quote(f"cd {stage.folder} && {command}")
    return f"{text} chroot --userspec={stage.user} {stage.root} env -i {words} sh -ec {shell}"


def build(place: Path) -> Stage:
    """Carry out every step; the last stage is the image."""
    stages: dict[str, Stage] = {}
    stage = Stage(place)
    make_base(place / "base")
    for word, rest in steps():
        sys.stdout.write(f"{word} {rest[:100]}\n")
        sys.stdout.flush()
        if word == "FROM":
            name = rest.partition(" AS ")[2] or "image"
            stage = stages[name] = Stage(place / name)
            run("cp", "--archive", place / "base", stage.root)
        elif word == "RUN":
            mounts = re.findall(r"--mount=type=bind,from=(\w+),source=(\S+),target=(\S+) ", rest)
            binds = {to: stages[name].root / what.lstrip("/") for name, what, to in mounts}
            command = re.sub(r"^(--mount=\S+ )+", "", rest)
            run("unshare", "--mount", "sh", "-ec", inside(stage, command, binds))
        elif word == "COPY":
            copy(stage, rest)
        elif word == "ENV":
            stage.env |= dict(row.split("=", 1) for row in shlex.split(rest))
        elif word == "WORKDIR":
            stage.folder = rest
            (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "USER":
            stage.user = rest
        elif word in NOTES:
            stage.notes[word] = rest
        else:
            raise SystemExit(f"the step {word} of the Dockerfile is not known here")
    return stage


USE = """
ip link set lo up 2>/dev/null || ifconfig lo up
{add}
{serve} & pid=$!
for second in $(seq 60); do {probe} 2>/dev/null && break; sleep 1; done
{probe}
{use}
kill -TERM $(cat {data}/lock)
wait $pid
"""


def use(stage: Stage) -> None:
    """Start the image, and be a client of it."""
    serve = shlex.join(json.loads(stage.notes["ENTRYPOINT"]) + json.loads(stage.notes["CMD"]))
    probe = shlex.join(json.loads(stage.notes["HEALTHCHECK"].partition(" CMD ")[2]))
    login = "--user alice --password-file /tmp/word"
    text = USE.format(
        add=inside(
            stage,
            "echo a-long-password >/tmp/word; onelog user add alice --password-stdin </tmp/word",
        ),
        serve=inside(stage, f"exec {serve}"),
        probe=inside(stage, probe),
        use=inside(
            stage,
            f"onelog pub a/b it-works --via mqtt {login};"
            f' test "$(onelog replay a/b --via kafka {login})" = it-works; ! touch /etc/mine',
        ),
        data=stage.root / "data",
    )
    run("unshare", "--mount", "--net", "sh", "-ec", text)


def main() -> None:
    """Build it, use it, leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="onelog-image-") as place:
        stage = build(Path(place))
        use(stage)
    sys.stdout.write("the image was built and used\n")


if __name__ == "__main__":
    main()
