"""The style of the house, held by a test over its own sources."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from onelog.cli.api.table import COMMANDS
from tests.unit import test_cli_table
from tools import gen_cli_docs

ROOT = Path(__file__).resolve().parents[1]
LINES_MAX = 500
COLUMNS_MAX = 100
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}

SOURCES = sorted(
    path for path in (ROOT / "src").rglob("*") if path.suffix in {".py", ".pyx", ".pxd"}
)
MODULES = [path for path in SOURCES if path.suffix == ".py"]
TEXTS = sorted(
    path
    for folder in ("src", "tests", "tools", "bench", "docs", "deploy", ".ci")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".pyx", ".pxd", ".md", ".toml", ".sh", ".yml", ".yaml", ".json", ""}
    and path.is_file()
    and "__pycache__" not in path.parts
) + sorted(path for path in ROOT.glob("*") if path.suffix in {".md", ".toml", ".py"})
TEXTS.append(ROOT / "Makefile")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_a_module_opens_with_a_sentence_on_what_it_is():
    bare = [name_of(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not bare


def test_a_source_file_is_short_and_narrow():
    found = []
    for path in SOURCES:
        lines = path.read_text().splitlines()
        if len(lines) > LINES_MAX:
            found.append(f"{name_of(path)}: {len(lines)} lines, split it")
        found += [
            f"{name_of(path)}:{number}: {len(line)} columns"
            for number, line in enumerate(lines, 1)
            if len(line) > COLUMNS_MAX
        ]
    assert not found


def test_no_module_or_package_has_a_name_that_says_nothing():
    named = {name_of(p) for p in SOURCES if {p.stem, p.parent.name} & BANNED_NAMES}
    assert not named


# The words are put together here, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(" + "|".join(["FIX" + "ME", "TO" + "DO", "X" * 3]) + r")\b")
MACHINE_PATHS = re.compile(
    r"(?<![\w.])/(" + "|".join(["wo" + "rk", "ro" + "ot", "ho" + "me"]) + ")/"
)
REGISTRIES = re.compile(
    "|".join(
        ["py" + r"pi\.org", "python" + r"hosted", "index" + "-url", "npm" + r"js\.", "shared" + "/"]
    )
)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (UNFINISHED, "finish it, or write an issue"),
        (MACHINE_PATHS, "a path of one machine"),
        (REGISTRIES, "the place packages come from is the user's choice"),
    ],
    ids=["unfinished", "machine-path", "registry"],
)
def test_no_file_holds_what_does_not_belong_into_a_repository(pattern, why):
    found = [
        f"{name_of(path)}:{number}: {line.strip()[:80]}"
        for path in TEXTS
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, f"{why}: {found}"


RIDDLES = (
    "stops to read",
    "stop to read",
    "stops to consume",
    "who comes second",
    "in the same go",
    "closed untold",
    "who there is",
    "slip of the pen",
    "nobody's business",
    "is told in a line",
    "is none: it is",
    "What is honest to know",
)
"""Phrases that readers stumbled over: false friends, and pronouns without a noun."""
RIDDLE_PATTERNS = {
    r"\b(?:is|are|was|were|be|been) told (?!to\b)": "say who reports it, or who gets the error",
    r"\b(?:tell|tells|told) of\b": "say: reports, names, lists",
    r"\b(?:for want of|of late|in one go)\b": "say: because there is no, lately, at once",
    r"\b[Ww]ho (?:comes|asks|asked|reads|writes|wrote|waits|sends|sent|opens|raises) \w+ \w+ is\b":
        "name the subject: a client that asks, a caller that waits",
    r"\bthreads that use a type for the first time together break\b": "say what breaks, and when",
}  # fmt: skip
"""Patterns of sentences that need a second reading, and what to write instead."""
READ_BY_STRANGERS = ("src/", "docs/", "CHANGELOG.md", "README.md", "ARCHITECTURE.md")
PAGE_ON_ENGLISH = "docs/style.md"


def test_no_text_holds_a_phrase_that_readers_stumbled_over():
    found = [
        f"{name_of(path)}: {phrase}"
        for path in TEXTS
        if name_of(path).startswith(READ_BY_STRANGERS) and name_of(path) != PAGE_ON_ENGLISH
        for phrase in RIDDLES
        if phrase.casefold() in " ".join(path.read_text(errors="replace").split()).casefold()
    ]
    assert not found, f"say it plainly, with the subject named ({PAGE_ON_ENGLISH}): {found}"


@pytest.mark.parametrize("pattern", RIDDLE_PATTERNS)
def test_no_text_holds_a_sentence_that_needs_a_second_reading(pattern):
    wanted = re.compile(pattern)
    found = [
        f"{name_of(path)}: {match.group()}"
        for path in TEXTS
        if name_of(path).startswith(READ_BY_STRANGERS) and name_of(path) != PAGE_ON_ENGLISH
        for match in wanted.finditer(" ".join(path.read_text(errors="replace").split()))
    ]
    assert not found, f"{RIDDLE_PATTERNS[pattern]} ({PAGE_ON_ENGLISH}): {found}"


ONE_PER_PROTOCOL = {
    "Connection",
    "Counters",
    "Hub",
    "Properties",
    "Publish",
    "State",
    "Transaction",
}
"""Parts that every protocol has, under the same name, because they mean the same in each."""
SAME_MEANING = {"Amqp", "Timer", "Tokens"}
"""A section of the configuration and the class that it configures; one small type in two rooms."""
CLIENTS = (
    "src/onelog/spark/",
    "src/onelog/pipelines/",
    "src/onelog/cli/",
    "src/onelog/kafka_client/",
)
"""Programs of their own, which share nothing but the wire with the broker."""
KERNEL = "src/onelog/kernel/"


def test_a_class_of_the_broker_has_a_name_that_no_other_class_has():
    named: dict[str, list[str]] = {}
    for path in MODULES:
        if name_of(path).startswith((*CLIENTS, KERNEL)):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named.setdefault(node.name, []).append(name_of(path))
    shared = {name: paths for name, paths in named.items() if len(paths) > 1}
    ambiguous = shared.keys() - ONE_PER_PROTOCOL - SAME_MEANING
    assert not ambiguous, f"one word, one meaning: {[shared[name] for name in ambiguous]}"
    assert shared.keys() >= ONE_PER_PROTOCOL | SAME_MEANING, "a listed name is shared no more"


def test_every_page_is_reachable_from_the_index():
    index = ROOT / "docs" / "index.md"
    reached: set[Path] = set()
    left = [index]
    while left:
        page = left.pop()
        if page in reached:
            continue
        reached.add(page)
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            linked = (page.parent / target).resolve()
            if "://" not in target:
                assert linked.exists(), f"{name_of(page)} links to {target}, which is missing"
                if linked.suffix == ".md":
                    left.append(linked)
    unreached = {name_of(page) for page in (ROOT / "docs").rglob("*.md")} - {
        name_of(page) for page in reached
    }
    assert not unreached


SOURCE_NAMES = re.compile(r"`([a-z_]+(?:/[a-z_]+)*\.(?:pyx|pxd|py))`")
EVERY_SOURCE = [name_of(path) for path in TEXTS if path.suffix in {".py", ".pyx", ".pxd"}] + [
    name_of(path) for path in (ROOT / "examples").rglob("*.py")
]


def test_a_text_names_only_source_files_that_exist():
    """A file that is moved or renamed takes its name in pages and comments with it."""
    gone = [
        f"{name_of(path)}: {name}"
        for path in TEXTS
        if path.suffix == ".md" or name_of(path).startswith("src/")
        for name in SOURCE_NAMES.findall(path.read_text(errors="replace"))
        if not any(source == name or source.endswith(f"/{name}") for source in EVERY_SOURCE)
    ]
    assert not gone


def test_links_of_the_first_pages_lead_somewhere():
    for page in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target:
                assert (ROOT / target).exists(), f"{page.name} links to {target}"


def defaults_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The parameters of a function that have a default."""
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    named = [one.arg for one in plain[len(plain) - len(arguments.defaults) :]]
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return named + [one.arg for one, default in pairs if default is not None]


def test_no_principal_has_a_default_so_that_every_call_says_who_acts():
    found = [
        f"{name_of(path)}:{node.lineno}: {node.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and "principal" in defaults_of(node)
    ]
    assert not found


def test_no_peer_begins_as_the_broker_itself():
    """`LOCAL` is passed in a call by whoever acts as the broker; nothing keeps it as its own."""
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Name)
        and node.value.id == "LOCAL"
    ]
    assert not found


CALLS_OF_OWN_TABLES = {"src/onelog/protocols/kafka/encoding.py"}
"""Loops over functions that the module itself compiled: nobody else puts one in."""


def unguarded_calls(tree: ast.AST) -> list[int]:
    """Lines where a loop calls what it loops over, for its effect, and nothing catches."""
    found = []
    for loop in (node for node in ast.walk(tree) if isinstance(node, ast.For)):
        names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
        caught = {
            id(node)
            for guard in ast.walk(loop)
            if isinstance(guard, ast.Try)
            for part in guard.body
            for node in ast.walk(part)
        }
        found += [
            node.lineno
            for node in ast.walk(loop)
            if isinstance(node, ast.Expr)
            and id(node) not in caught
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
            and node.value.func.id in names
        ]
    return found


def test_no_list_of_listeners_can_be_broken_by_one_of_them():
    """Whoever calls a list isolates each call: `Troubles.tell` does it in one place."""
    bare = [
        f"{name_of(path)}:{line}"
        for path in MODULES
        if name_of(path) not in CALLS_OF_OWN_TABLES
        for line in unguarded_calls(ast.parse(path.read_text()))
    ]
    assert not bare
    assert unguarded_calls(ast.parse("for hook in hooks:\n    hook(1)")) == [2]


BLAME = {"error", "exception", "warning", "critical"}
REGISTER = "src/onelog/observe/troubles.py"
OTHER_PROCESSES = ("src/onelog/spark/", "src/onelog/pipelines/", "src/onelog/cli/")
"""They are clients of a broker and have no register."""


def is_log_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in BLAME
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in {"_log", "log", "logger", "logging"}
    )


def catches_everything(handler: ast.ExceptHandler) -> bool:
    names = ast.walk(handler.type) if handler.type is not None else ()
    wide = {"Exception", "BaseException"}
    return handler.type is None or any(isinstance(n, ast.Name) and n.id in wide for n in names)


def untold_failures(tree: ast.AST) -> list[int]:
    """Lines where an unexpected error goes to the log or the loop, and not to `Troubles`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and catches_everything(node):
            found |= {inner.lineno for inner in ast.walk(node) if is_log_call(inner)}
        if is_log_call(node) and (
            node.func.attr == "exception" or any(one.arg == "exc_info" for one in node.keywords)
        ):
            found.add(node.lineno)
        if isinstance(node, ast.Attribute) and node.attr == "call_exception_handler":
            found.add(node.lineno)
    return sorted(found)


def test_every_failure_that_is_isolated_is_in_the_register():
    """What only the log knows is neither counted nor at /health, and can fill the log."""
    bypasses = [
        f"{name_of(path)}:{line}"
        for path in MODULES
        if name_of(path) != REGISTER and not name_of(path).startswith(OTHER_PROCESSES)
        for line in untold_failures(ast.parse(path.read_text()))
    ]
    assert not bypasses
    wide = "try:\n    f()\nexcept Exception as e:\n    _log.error(str(e))"
    assert untold_failures(ast.parse(wide)) == [4]
    assert untold_failures(ast.parse("_log.error('x', exc_info=e)")) == [1]
    assert untold_failures(ast.parse("loop.call_exception_handler({})")) == [1]
    assert not untold_failures(ast.parse(wide.replace("Exception", "OnelogError")))


ATTRIBUTES_MAX = 29
"""CPython 3.11 keeps the attributes of an object in its class's table up to 30; beyond that each
look-up is that of an ordinary dict, and every method of the object slower."""


def attributes_of(tree: ast.ClassDef) -> set[str]:
    """What the methods of a class set on `self`."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def has_slots(tree: ast.ClassDef) -> bool:
    return any(
        isinstance(target, ast.Name) and target.id == "__slots__"
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
    )


def test_a_class_with_many_attributes_has_slots():
    slow = [
        f"{name_of(path)}: {node.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and not has_slots(node)
        and len(attributes_of(node)) > ATTRIBUTES_MAX
    ]
    assert not slow


ABOVE_THE_LOG = ("cursors", "broker", "queues", "protocols", "admin", "serving", "cli")
PARTS_OF_A_PARTITION = {
    "arrivals",
    "epochs",
    "jobs",
    "local",
    "lookup",
    "producers",
    "progress",
    "replica",
    "visible",
}


def test_nobody_above_the_log_reaches_behind_the_handle_of_a_partition():
    """mypy holds the same wherever types are known; this holds it where they are not."""
    found = [
        f"{name_of(path)}:{node.lineno}: .{node.attr}"
        for path in MODULES
        if path.is_relative_to(ROOT / "src" / "onelog")
        and path.relative_to(ROOT / "src" / "onelog").parts[0] in ABOVE_THE_LOG
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in PARTS_OF_A_PARTITION
    ]
    assert not found, f"ask the handle (log/handle.py): {found}"


WITHOUT_PROTOCOLS = (
    "base", "record", "observe", "metadata", "storage", "net", "security", "log", "cursors",
    "broker",
)  # fmt: skip
PROTOCOLS = re.compile(r"mqtt|kafka|amqp|nats(?![a-z])|rabbit", re.IGNORECASE)


def words_in_code(tree: ast.AST) -> list[tuple[int, str]]:
    """Every name and text of a module with its line, without what is written for readers."""
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.append((node.lineno, node.id))
        elif isinstance(node, ast.Attribute):
            found.append((node.lineno, node.attr))
        elif isinstance(node, ast.arg | ast.keyword):
            found.append((node.lineno, node.arg or ""))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append((node.lineno, node.name))
        elif isinstance(node, ast.alias):
            found += [(node.lineno, node.name), (node.lineno, node.asname or "")]
        elif isinstance(node, ast.Constant) and id(node) not in prose:
            text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            found.append((node.lineno, str(text)))
    return found


def test_the_floors_below_the_protocols_name_none_in_their_code():
    """What a protocol knows is in its room, or is handed in; comments may say who needs a thing."""
    house = ROOT / "src" / "onelog"
    found = [
        f"{name_of(path)}:{line}: {word}"
        for path in MODULES
        if path.is_relative_to(house) and path.relative_to(house).parts[0] in WITHOUT_PROTOCOLS
        for line, word in words_in_code(ast.parse(path.read_text()))
        if PROTOCOLS.search(word)
    ]
    assert not found, f"move it to the protocol's room, or hand it in: {found}"
    for text in (
        "to_kafka(x)",
        "x.mqtt",
        "f(amqp=1)",
        "f('mqtt')",
        "def amqp(): ...",
        "[b'~nats']",
    ):
        words = [word for _line, word in words_in_code(ast.parse(text))]
        assert any(map(PROTOCOLS.search, words)), text
    assert not words_in_code(ast.parse('"""Kafka\'s own."""'))


def test_every_operation_of_the_admin_api_has_a_command():
    """Whatever can be seen or changed has a command; `tests/unit/test_cli_table.py` says more."""
    asked = {f"{row.method} {row.path}" for row in test_cli_table.declared()}
    known = {row.asks for row in COMMANDS}
    assert not asked - known, (
        "add a row to src/onelog/cli/api/table.py: the command, or by_hand=True and its words when"
        f" a module of its own makes it: {sorted(asked - known)}"
    )
    assert not (known - asked) - test_cli_table.EVENTS, "the operations of these rows are gone"


def test_the_page_of_commands_is_what_the_commands_are():
    page = gen_cli_docs.PAGE.read_text()
    assert page == gen_cli_docs.render(), "run `.venv/bin/python tools/gen_cli_docs.py`"


CONSOLE = sorted(
    path
    for path in (ROOT / "console" / "src").rglob("*")
    if path.suffix in {".ts", ".tsx"} and path.name != "schema.ts"
)
CONSOLE_LINES_MAX = 300
UNTYPED = re.compile(r"\bas any\b|:\s*any\b|<any>|@ts-ignore|@ts-expect-error|@ts-nocheck")
RAW_MARKUP = re.compile(
    r"dangerouslySetInnerHTML|\.innerHTML|\.outerHTML|insertAdjacentHTML|\beval\("
)


def test_a_file_of_the_console_is_short_opens_with_a_sentence_and_is_typed():
    found = []
    for path in CONSOLE:
        lines = path.read_text().splitlines()
        if len(lines) > CONSOLE_LINES_MAX:
            found.append(f"{name_of(path)}: {len(lines)} lines, split it")
        if not lines[0].startswith("//"):
            found.append(f"{name_of(path)}: say what it is in its first line")
        found += [
            f"{name_of(path)}:{number}: {line.strip()[:80]}"
            for number, line in enumerate(lines, 1)
            if UNTYPED.search(line) or RAW_MARKUP.search(line) or UNFINISHED.search(line)
        ]
    assert not found
    assert CONSOLE


def test_the_console_asks_no_other_machine_and_its_lock_names_no_registry():
    lock = (ROOT / "console" / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    assert not REGISTRIES.search(lock)
    assert not [name_of(path) for path in CONSOLE if re.search("https?://", path.read_text())]
