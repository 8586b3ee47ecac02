"""The house rules, read from the source: who may import whom, and what no file may hold.

Each rule is a function from sources to complaints, so that the tests at the end can show it a fault and see
it complain: a rule that cannot fail holds nothing.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from klamm.apis.registry import load_handlers

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "src/klamm"
SPARK_PACKAGE = REPOSITORY / "src/pyspark_klamm"

# A folder may import itself and the folders above it in this list. One of them is a package of its own, as
# Spark finds data sources by their names.
FOLDERS = (
    "model",
    "metrics",
    "config",
    "records",
    "lineformats",
    "protocol",
    "security",
    "client",
    "storage",
    "coordination",
    "cluster",
    "replication",
    "groups",
    "transactions",
    "apis",
    "server",
    "node",
    "ingest",
    "pyspark_klamm",
    "pipelines",
    # Tests drive all parts, and no part imports what is for tests.
    "testing",
    # What commands and the console both do to a cluster.
    "operating",
    "console",
    "cli",
)

# What a part of the client may import of the others, besides what lies in client/ itself.
CLIENT_PARTS = {
    "network": {"network"},
    "producer": {"network", "producer"},
    "consumer": {"network", "consumer"},
    "admin": {"network", "admin"},
    "plain": {"network", "producer", "consumer", "admin", "plain"},
}

# Parts that take events and return changes. They get time and chance from outside, or tests could not
# steer them.
CORES = (
    "protocol/",
    "records/",
    "replication/closest_replica.py",
    "groups/group.py",
    "groups/member.py",
    "groups/offsets.py",
    "coordination/store.py",
    "coordination/tree.py",
    "coordination/sessions.py",
    "cluster/controller/",
    "cluster/placement.py",
    "cluster/image.py",
    "replication/isr.py",
    "replication/leader.py",
    "replication/leader_session.py",
    "replication/progress.py",
    "replication/follower.py",
    "cluster/persistent_map.py",
    "metrics/names.py",
    "metrics/page.py",
    "metrics/request_times.py",
    "metrics/text.py",
    "metrics/topic_counters.py",
    "cluster/changes.py",
    "replication/waiting_produces.py",
    "cluster/announcing.py",
    "cluster/fencing.py",
    "security/",
    "client/network/addresses.py",
    "client/network/backoff.py",
    "client/network/connection_errors.py",
    "client/network/metadata.py",
    "client/network/receiving.py",
    "client/network/requests.py",
    "client/consumer/outages.py",
    "client/consumer/start.py",
    "client/consumer/subscription.py",
    "client/consumer/partition_state.py",
    "client/consumer/positions.py",
    "client/consumer/hand_out.py",
    "client/consumer/lease.py",
    "client/consumer/fetch_planner.py",
    "client/consumer/fetch_requests.py",
    "client/consumer/group/assignors/",
    "client/consumer/group/actions.py",
    "client/consumer/group/claim_reader.py",
    "client/consumer/group/subscriptions.py",
    "client/consumer/group/membership.py",
    "client/producer/partitioners.py",
    "client/producer/arguments.py",
    "client/producer/template.py",
    "client/producer/batches.py",
    "client/producer/delivery.py",
    "client/producer/sequences.py",
    "client/producer/queues.py",
    "client/producer/schedule.py",
    "client/producer/ledger.py",
    "client/producer/accumulator.py",
    "client/producer/settling.py",
    "client/producer/requests.py",
    "client/producer/settings.py",
    "operating/checkup/checks.py",
    "operating/checkup/facts.py",
    "operating/placing.py",
    "operating/ranges.py",
    "operating/seeking.py",
    "pipelines/comparing.py",
    "pipelines/conditions.py",
    "pipelines/counting.py",
    "pipelines/dev/changes.py",
    "pipelines/dev/watching.py",
    "pipelines/findings.py",
    "pipelines/graph.py",
    "pipelines/outline.py",
    "pipelines/schemas/ddl.py",
    "pipelines/schemas/fitting.py",
    "pipelines/schemas/inference.py",
    "ingest/lines.py",
    "ingest/columns.py",
    "ingest/files.py",
    "ingest/recovery.py",
    "ingest/formats.py",
    "ingest/parsing.py",
    "lineformats/",
    "ingest/pacing.py",
    "ingest/progress.py",
    "cli/pipelines/dev/messages.py",
    "pyspark_klamm/client_options.py",
    "pyspark_klamm/options.py",
    "pyspark_klamm/offsets.py",
    "pyspark_klamm/planning.py",
    "pipelines/failures.py",
    "pipelines/positions.py",
    "pipelines/progress.py",
    "pipelines/retrying.py",
    "pipelines/sinks/layout.py",
    "pipelines/tables/partitioning.py",
    "pipelines/tables/statistics.py",
)
OUTSIDE_WORLD = frozenset({"asyncio", "socket", "time", "random", "threading", "selectors", "uvloop"})

MOST_LINES = 600
TEXT_SUFFIXES = frozenset({"", ".py", ".md", ".toml", ".txt", ".json", ".js", ".java", ".xml", ".properties"})
# Written in pieces, so that this file does not complain about itself.
MACHINE_WORDS = ("/" + "work/", "/" + "root/", "/" + "home/", "/opt/" + "wheels", '"re' + 'solved":')
MACHINE_TEXT = re.compile("|".join(MACHINE_WORDS))
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")


@dataclass(frozen=True)
class Source:
    """A file of ours: its path from the repository's root, and its text."""

    path: str
    text: str

    @property
    def in_package(self) -> str:
        """The path below src/klamm, or of the package for Spark below src, or nothing."""
        if self.path.startswith("src/klamm/"):
            return self.path.removeprefix("src/klamm/")
        return self.path.removeprefix("src/") if self.path.startswith("src/pyspark_klamm/") else ""

    @property
    def package(self) -> list[str]:
        """The names that a relative import of this file starts from."""
        folders = self.in_package.split("/")[:-1]
        return folders if folders[:1] == ["pyspark_klamm"] else ["klamm", *folders]


# ---- the rules


def wrong_imports(source: Source) -> Iterator[str]:
    folder = source.in_package.split("/")[0]
    if "/" not in source.in_package:
        return
    if folder not in FOLDERS:
        yield f"{source.path}: the folder {folder} is not in the list of folders"
        return
    allowed = FOLDERS[: FOLDERS.index(folder) + 1]
    for module, line in imported_modules(source):
        top, _, below = module.partition(".")
        imported = below.split(".")[0] if top == "klamm" else top if top == SPARK_PACKAGE.name else ""
        if imported and imported not in allowed:
            yield f"{source.path}:{line}: {folder} may not import {module}, which lies below it"


def wrong_imports_in_the_client(source: Source) -> Iterator[str]:
    folder, *below = source.in_package.split("/")
    if folder != "client":
        return
    allowed = CLIENT_PARTS.get(below[0], set())
    for module, line in imported_modules(source):
        parts = module.split(".")
        if parts[:2] == ["klamm", "client"] and len(parts) > 2 and parts[2] in CLIENT_PARTS.keys() - allowed:
            yield f"{source.path}:{line}: {'/'.join(below[:-1]) or 'client'} may not import {module}"


def outside_world_in_cores(source: Source) -> Iterator[str]:
    if not source.in_package.startswith(CORES):
        return
    for module, line in imported_modules(source):
        if module.split(".")[0] in OUTSIDE_WORLD:
            yield f"{source.path}:{line}: a core may not import {module}"


def too_many_lines(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    if source.path.endswith(".py") and lines > MOST_LINES:
        yield f"{source.path}: {lines} lines; split it by noun ({MOST_LINES} at most)"


def missing_docstring(source: Source) -> Iterator[str]:
    # A file of tests may let their names speak.
    if not source.path.endswith(".py") or not source.text.strip() or "/test_" in source.path:
        return
    if not ast.get_docstring(parsed(source.text)):
        yield f"{source.path}: no docstring says what the module is for"


def missing_annotations_import(source: Source) -> Iterator[str]:
    if not source.path.endswith(".py"):
        return
    body = [node for node in parsed(source.text).body if not _is_docstring(node)]
    only_names_others = all(isinstance(node, ast.ImportFrom) for node in body)
    future = [node for node in body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    if not only_names_others and not future:
        yield f"{source.path}: `from __future__ import annotations` is missing"


def unfinished_work(source: Source) -> Iterator[str]:
    if source.path.endswith(".py"):
        for line, comment in comments(source.text):
            if UNFINISHED.search(comment):
                yield f"{source.path}:{line}: do it, or say why not in a sentence: {comment}"


def machine_text(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if MACHINE_TEXT.search(line):
            yield f"{source.path}:{number}: this belongs to one machine: {line.strip()[:100]}"


RULES = (
    wrong_imports,
    wrong_imports_in_the_client,
    outside_world_in_cores,
    too_many_lines,
    missing_docstring,
    missing_annotations_import,
    unfinished_work,
    machine_text,
)


# ---- reading sources


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def imported_modules(source: Source) -> Iterator[tuple[str, int]]:
    """Every module a file imports, wherever in the file, relative imports resolved."""
    if not source.path.endswith(".py"):
        return
    package = source.package
    for node in ast.walk(parsed(source.text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            # `from klamm import storage` imports a folder by its name.
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "klamm" else [module]
            for name in names:
                yield name, node.lineno


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@cache
def all_sources() -> tuple[Source, ...]:
    """All files that are, or are about to be, in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        paths = [Path(line) for line in listed.stdout.splitlines()]
    else:  # an archive without its history
        folders = ("src", "tests", "bench", "docs", "scripts")
        paths = [path.relative_to(REPOSITORY) for one in folders for path in (REPOSITORY / one).rglob("*")]
    return tuple(
        Source(path.as_posix(), (REPOSITORY / path).read_text(errors="replace"))
        for path in sorted(set(paths))
        if path.suffix in TEXT_SUFFIXES and (REPOSITORY / path).is_file() and "__pycache__" not in path.parts
    )


# ---- the tests


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: object) -> None:
    complaints = [line for source in all_sources() for line in rule(source)]  # type: ignore[operator]
    assert not complaints, "\n" + "\n".join(complaints)


def test_every_api_module_is_named_by_its_key_and_served() -> None:
    """A file of apis/ that registers a handler is named after its key, and a file named so registers."""
    files = {path.stem for path in (PACKAGE / "apis").glob("*.py") if "@api(" in path.read_text()}
    served = {f"k{key.value:02d}_{key.name.lower()}" for key in load_handlers()}
    assert files - {"registry"} == served
    named_by_key = {path.stem for path in (PACKAGE / "apis").glob("k[0-9]*.py")}
    assert named_by_key == served, "a file named after a key must serve it"


def test_every_folder_of_the_package_has_its_place() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    folders.add(SPARK_PACKAGE.name)
    assert folders <= set(FOLDERS), f"give them a place in FOLDERS: {folders - set(FOLDERS)}"


def test_the_architecture_describes_every_folder_and_names_no_file_that_is_gone() -> None:
    text = (REPOSITORY / "docs/ARCHITECTURE.md").read_text()
    described = described_folders(text)
    folders = [path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.glob("*/**/__init__.py")]
    expected = {*folders, SPARK_PACKAGE.name}
    assert not expected - set(described), f"describe in docs/ARCHITECTURE.md: {expected - set(described)}"
    assert not set(described) - expected, f"docs/ARCHITECTURE.md: not there: {set(described) - expected}"
    tops = [folder for folder in described if "/" not in folder]
    assert tops == [folder for folder in FOLDERS if folder in tops], "keep the order of FOLDERS"
    gone = [name for name in named_files(text) if not any((root / name).exists() for root in ROOTS)]
    assert not gone, f"docs/ARCHITECTURE.md names files that are not there: {gone}"


ROOTS = (PACKAGE, PACKAGE.parent, REPOSITORY)


def described_folders(text: str) -> list[str]:
    """The folders in the first cells of the table of folders, in its order."""
    return re.findall(r"^\| `([\w/]+)/` \| \S", text, re.MULTILINE)


def named_files(text: str) -> list[str]:
    return re.findall(r"`([\w/]+\.py)`", text)


def test_the_architecture_is_read_as_it_is_written() -> None:
    text = "see `b/x.py`, not `c/`\n\n| folder | what it is for |\n|---|---|\n| `a/` | of it |\n"
    text += "| `a/b/` | `c/` |\n"
    assert described_folders(text) == ["a", "a/b"]
    assert named_files(text) == ["b/x.py"]


FAULTS = [
    (wrong_imports, "src/klamm/storage/x.py", "from klamm.cluster.image import ClusterImage\n"),
    (wrong_imports, "src/klamm/model/x.py", "def late():\n    import klamm.config.rows\n"),
    (wrong_imports, "src/klamm/records/x.py", "from klamm import storage\n"),
    (wrong_imports, "src/klamm/records/x.py", "from ..storage import log\n"),
    (wrong_imports, "src/klamm/attic/x.py", "import os\n"),
    (wrong_imports, "src/pyspark_klamm/x.py", "from klamm.pipelines import source\n"),
    (wrong_imports, "src/klamm/client/x.py", "import pyspark_klamm.session\n"),
    (wrong_imports_in_the_client, "src/klamm/client/x.py", "from klamm.client.network import network\n"),
    (wrong_imports_in_the_client, "src/klamm/client/producer/x.py", "import klamm.client.plain.runner\n"),
    (
        wrong_imports_in_the_client,
        "src/klamm/client/admin/x.py",
        "from klamm.client.consumer.start import y\n",
    ),
    (outside_world_in_cores, "src/klamm/groups/group.py", "import time\n"),
    (outside_world_in_cores, "src/klamm/protocol/messages/k00_produce.py", "from asyncio import sleep\n"),
    (outside_world_in_cores, "src/klamm/cluster/controller/topics.py", "import random as chance\n"),
    (outside_world_in_cores, "src/pyspark_klamm/planning.py", "import time\n"),
    (too_many_lines, "tests/x.py", "x = 1\n" * (MOST_LINES + 1)),
    (missing_docstring, "tests/x.py", "x = 1\n"),
    (missing_annotations_import, "tests/x.py", '"""Says it."""\nx: int = 1\n'),
    (unfinished_work, "src/klamm/x.py", "x = 1  # TO" + "DO: more\n"),
    (machine_text, "docs/x.md", "look into /" + "work/main\n"),
]


@pytest.mark.parametrize(("rule", "path", "text"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_rule_complains(rule: object, path: str, text: str) -> None:
    assert list(rule(Source(path, text)))  # type: ignore[operator]


def test_rules_accept_what_is_right() -> None:
    text = '"""Says it."""\n\nfrom __future__ import annotations\n\nfrom klamm.model.ids import TopicId\n'
    source = Source("src/klamm/storage/x.py", text)
    assert not [line for rule in RULES for line in rule(source)]
