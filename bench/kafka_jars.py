"""Fetches Apache Kafka's jars with Maven into `build/kafka/SET`, for benchmarks and client tests.

Rules: Maven decides where packages come from. A set that is there already is not fetched again.
Without Maven nothing fails: what needs the jars is skipped and says so.

Usage: python -m bench.kafka_jars SET…    (see SETS)
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "build" / "kafka"
FETCH_S = 300

# The log4j binding is the one that Kafka ships; clients keep silent.
SETS: dict[str, tuple[str, ...]] = {
    "broker": (
        "org.apache.kafka:kafka_2.13:[4.0,5.0)",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
    ),
    "client-3": (
        "org.apache.kafka:kafka-clients:[3.9,3.10)",
        "com.fasterxml.jackson.core:jackson-databind:2.19.2",
        "org.slf4j:slf4j-nop:1.7.36",
    ),
    "client-4": (
        "org.apache.kafka:kafka-clients:[4.0,5.0)",
        "com.fasterxml.jackson.core:jackson-databind:2.19.2",
        "org.slf4j:slf4j-nop:1.7.36",
    ),
    "mirror": (
        "org.apache.kafka:connect-mirror:[4.0,5.0)",
        "org.apache.kafka:connect-runtime:[4.0,5.0)",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
    "streams": (
        "org.apache.kafka:kafka-streams:[4.0,5.0)",
        "org.slf4j:slf4j-nop:1.7.36",
    ),
}
ALONE = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)
LACKS_MAVEN = "Maven is missing: run 'apt-get install maven' as root"


def jars(name: str) -> Path | None:
    """Where the jars of a set lie; None where they were not fetched."""
    folder = FOLDER / name
    return folder if (folder / "complete").exists() else None


def version(name: str) -> str:
    """Which Kafka a set holds."""
    found = next((FOLDER / name).glob("kafka-clients-*.jar"))
    return found.stem.removeprefix("kafka-clients-")


def pom(artifacts: tuple[str, ...]) -> str:
    """A project that is nothing but its dependencies.

    `:alone` leaves out what one needs itself; `version@tests` takes the jar of that classifier.
    """
    parts = []
    for artifact in artifacts:
        group, name, release, *alone = artifact.split(":")
        wanted, _, kind = release.partition("@")
        classifier = f"<classifier>{kind}</classifier>" if kind else ""
        parts.append(
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
            f"<version>{wanted}</version>{classifier}{ALONE if alone else ''}</dependency>"
        )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>onelog</groupId>"
        "<artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{''.join(parts)}</dependencies></project>\n"
    )


def fetch(name: str) -> str | None:
    """Fetch a set; what went wrong, or None."""
    if jars(name) is not None:
        return None
    return fetch_into(FOLDER / name, SETS[name], f"Apache Kafka's jars ({name})")


def fetch_into(folder: Path, artifacts: tuple[str, ...], what: str) -> str | None:
    """Fetch artifacts with all they need; what went wrong, or None. `complete` marks the end."""
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        return LACKS_MAVEN
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "pom.xml").write_text(pom(artifacts))
    print(f"onelog: fetching {what} with Maven", file=sys.stderr)
    try:
        done = subprocess.run(
            [maven, "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"Maven did not fetch {what} in {FETCH_S} s"
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        return f"Maven could not fetch {what}: {lines[0] if lines else 'no reason'}"
    (folder / "complete").touch()
    return None


def main(names: list[str]) -> int:
    """Fetch each set, and name in one line what could not be fetched."""
    failed = {reason for name in names if (reason := fetch(name)) is not None}
    for reason in failed:
        print(f"onelog: Java tests and Apache Kafka are skipped: {reason}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
