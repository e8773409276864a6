"""The pages about crossing protocols are true: the table is the code's, and the examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from onelog.cli.failures import MEANINGS
from onelog.record.fields import FIELDS
from tests.conformance.mqtt_brokers import DEADLINE_S, ROOT, environment
from tests.cross.clients import WORDS
from tools import gen_cli_docs

MAPPING = (ROOT / "docs" / "reference" / "mapping.md").read_text()
NO_WORD = chr(0x2013)
GUIDE = (ROOT / "docs" / "guide" / "cli.md").read_text()


def test_the_page_has_every_field_of_the_table_with_its_names():
    section = MAPPING.partition("## Fields")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    assert [
        (
            cells[0],
            cells[1],
            cells[2],
            *(re.match(rf"`\w+`|{NO_WORD}", cell).group() for cell in cells[3:]),
        )
        for cells in rows
    ] == [
        (
            f"`{row.name}`",
            f"`{row.header.decode()}`",
            row.form,
            *(
                f"`{WORDS[protocol][row.name]}`" if row.name in WORDS[protocol] else NO_WORD
                for protocol in ("mqtt3", "mqtt5", "amqp")
            ),
        )
        for row in FIELDS
    ]


def test_no_two_fields_share_a_name_or_a_header():
    for names in ([row.name for row in FIELDS], [row.header for row in FIELDS]):
        assert len(set(names)) == len(names)


def _commands() -> list[tuple[str, str]]:
    """The commands of the guide, and what the comments behind them say."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL):
        for line in block.splitlines():
            command, _, said = line.partition("  # ")
            found.append((command.strip(), said.strip()))
    return found


def test_the_commands_of_the_guide_do_what_it_says(server, tmp_path):
    """In one shell, one after the other, as a reader would; what a comment lists is printed."""
    binary = tmp_path / ".venv" / "bin" / "onelog"
    binary.parent.mkdir(parents=True)
    ports = "\n".join(
        f"export ONELOG_LISTENERS_{name.upper()}_PORT={server.ports[name]}"
        for name in ("mqtt", "kafka", "amqp", "admin")
    )
    ports += f"\nexport ONELOG_DATA_DIR={server.folder}/data"
    source = f'#!/bin/sh\n{ports}\nexec {sys.executable} -m onelog "$@"\n'
    binary.write_text(source)
    binary.chmod(0o755)
    where = environment() | {"PATH": "/usr/bin:/bin"}
    for command, said in _commands():
        done = subprocess.run(
            ["sh", "-c", command],
            check=False,
            cwd=tmp_path,
            env=where,
            capture_output=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, (command, done.stderr)
        assert not done.stderr, command
        printed = done.stdout.decode().split()
        if said == "21.5, 19.0 and 20.3, a line each":
            assert sorted(printed) == ["19.0", "20.3", "21.5"]
        elif re.fullmatch(r"[\w.]+(, [\w.]+)*", said) and "|" not in command:
            assert printed == said.split(", "), command


def test_every_command_of_every_page_can_be_run_in_a_clone():
    """There is no `onelog` on the path of a reader, and no pip that knows our environment."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for page in pages:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.splitlines():
                found = re.search(r"(^|[|;&] |\$\()(onelog|pip3?|python3? -m onelog) ", line)
                assert found is None, f"{page.name}: {line}"
                for target in re.findall(r"^make ([a-z-]+)", line):
                    assert f"\n{target}:" in (ROOT / "Makefile").read_text(), line


def test_every_option_of_the_guide_exists():
    known = set(re.findall(r"`(--[a-z-]+)`", gen_cli_docs.render()))
    assert not set(re.findall(r"(?<!-)(--[a-z][a-z-]+)", GUIDE)) - known - {"--help"}


def test_the_guides_have_an_example_of_every_command():
    """Those that this guide does not run are run by `tests/unit/test_cli_commands.py`, or belong to
    another guide."""
    guides = "\n".join(page.read_text() for page in (ROOT / "docs" / "guide").glob("*.md"))
    blocks = "\n".join(re.findall(r"```(?:sh|bash)\n(.*?)```", guides, re.DOTALL))
    elsewhere = ("pipeline", "table", "spark", "sql", "serve", "doctor", "stream start-over")
    known = [
        re.sub(r"( \[?[A-Z_…]+\]?)+$", "", usage)
        for usage in re.findall(r"^### `onelog (.*)`$", gen_cli_docs.render(), re.MULTILINE)
    ]
    missing = [
        words
        for words in known
        if not words.startswith(elsewhere) and f"onelog {words}" not in blocks
    ]
    assert not missing


def test_the_exit_codes_of_the_guide_are_those_of_the_commands():
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", GUIDE.partition("## Exit codes")[2], re.MULTILINE)
    assert {int(code): about for code, about in rows} == MEANINGS


def test_the_guide_is_found_by_its_readers():
    index = Path(ROOT / "docs" / "index.md").read_text()
    assert "guide/cli.md" in index
    assert "reference/mapping.md" in index
