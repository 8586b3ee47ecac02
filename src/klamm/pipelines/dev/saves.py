"""What `klamm pipeline dev` shows after a save: findings, the rows of nodes that changed, and differences.

The parts come one by one, the quickest first. Rows are computed on kept records, the newest of each topic
(`newest.py`): they are read again when there are newer ones. Pipelines that use what has changed are compared
with the last version that worked, on the same records. What that version makes of them was computed while
there was nothing else to do (`prepare`), or is computed now, as its code is still there (`versions.py`); what
a function imports only in a Python worker is then the present file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from klamm.pipelines.definitions import Definitions, Pipeline
from klamm.pipelines.dev.sessions import LastingSession
from klamm.pipelines.dev.versions import Version, pipelines_using
from klamm.pipelines.diff import Outcome, PipelineDiff, compared, outcomes
from klamm.pipelines.errors import PipelineError, Place, SamplingFailed
from klamm.pipelines.findings import Finding, in_order
from klamm.pipelines.lint import check
from klamm.pipelines.lint_deep import check_plans
from klamm.pipelines.newest import KeptRecords
from klamm.pipelines.preview import Preview, preview_of
from klamm.pipelines.project import PROJECT_FILE, Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_PREVIEWS = 3
"""How many nodes are shown after a save. More would not fit on a terminal; the others are named."""

ANSWER_TIMEOUT_MS = "3000"
"""How long a broker may take to answer. Without one, each save would wait for that."""


@dataclass(frozen=True)
class Found:
    """What lint finds. With `of_plans` what Spark's analyser finds in the pipelines that changed."""

    findings: Sequence[Finding]
    of_plans: bool = False


@dataclass(frozen=True)
class Shown:
    """The rows of a node, or why there are none."""

    node: str
    last: int
    preview: Preview | None = None
    error: str = ""


@dataclass(frozen=True)
class Others:
    """Nodes that changed too and are not shown."""

    nodes: Sequence[str]


@dataclass(frozen=True)
class Compared:
    """The differences to the last version that worked. `unknown` are pipelines of which is not known what
    that version makes of the records."""

    differences: Sequence[PipelineDiff]
    unknown: Sequence[str] = ()


Part = Found | Shown | Others | Compared


class Superseded(Exception):
    """What is computed has become useless, since files were saved meanwhile."""


class Saves:
    """What is known between saves: records, the last version that worked, and what it makes of them.

    `last` records of each source are shown, and `compared` compared. `wanted` are the nodes to show, whatever
    has changed; if there are none, those that changed. `is_superseded` is asked after each step: Spark's jobs
    may have been cancelled by their `group`, so that the step failed for no reason of its own.
    """

    def __init__(
        self,
        project: Project,
        spark: LastingSession,
        *,
        last: int,
        compared: int,
        wanted: Sequence[str] = (),
        is_superseded: Callable[[], bool] = lambda: False,
        group: str = "klamm-dev",
    ) -> None:
        self.wanted = list(wanted)
        self._is_superseded = is_superseded
        self._group = group
        self._spark = spark
        self._last = last
        self._most = max(last, compared)
        self._compared = compared
        self._project = _impatient(project)
        self._records = KeptRecords(self._project, self._most)
        self._newest: Version | None = None
        self._saved: frozenset[Path] = frozenset()  # since that version
        self._shown: list[str] = []
        self._working: Version | None = None
        self._outcomes: dict[str, Outcome] = {}

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes of the newest version that could be imported."""
        return list(self._newest.definitions.nodes) if self._newest is not None else []

    @property
    def shown(self) -> list[str]:
        """The nodes that were shown last."""
        return self._shown

    @property
    def files(self) -> frozenset[Path]:
        """Files outside of the pipelines folder that the project imports."""
        return self._newest.files if self._newest is not None else frozenset()

    @property
    def project(self) -> Project:
        return self._project

    def use_project(self, project: Project) -> None:
        """Another klamm.toml counts from now on."""
        new = _impatient(project)
        if (new.bootstrap, new.kafka) != (self._project.bootstrap, self._project.kafka):
            self._records = KeptRecords(new, self._most)
            self._outcomes.clear()
        self._project = new

    def after(self, saved: frozenset[Path]) -> Iterator[Part]:
        """What to show after these files were saved; without any, at the start and when the user asks. Until
        it has come to its end it counts as not happened. Raises Superseded."""
        saved = self._saved = self._saved | saved
        version = Version(self._project)
        changes_inputs = any(self._is_input(path) for path in saved)
        # Else the version before would be computed with what is now in the files that it reads.
        problem = "" if changes_inputs and self._working else self._read_newer()
        findings = self._findings(version, problem)
        self._go_on()
        yield Found(findings)
        if version.found.problems:
            return
        touched = self._touched(version, saved)
        with version.in_use() as definitions, self._spark.fresh(self._group) as spark:
            shown, others = self._chosen(touched, definitions)
            works = True
            for name in shown:
                part = self._show(definitions, name, spark)
                self._go_on()
                works = works and not part.error
                yield part
            if others:
                yield Others(others)
        affected = pipelines_using(touched, definitions) if self._working is not None else []
        gone = self._gone(definitions)
        if self._working is not None and (affected or gone):
            before = self._before(affected, computes=not changes_inputs)
            with version.in_use() as definitions, self._spark.fresh(self._group) as spark:
                after = self._outcomes_of(version, affected, spark)
                yield self._compared_with(before, after, gone)
                works = works and not any(each.error for each in after.values())
                if works and not any(each.severity == "error" for each in findings):
                    of_plans = self._plan_findings(definitions, affected, spark)
                    self._go_on()
                    yield Found(of_plans, of_plans=True)
        else:
            after = {}
        self._newest, self._shown, self._saved = version, shown, frozenset()
        if works:
            self._working = version
            kept = {name: each for name, each in self._outcomes.items() if name in definitions.pipelines}
            self._outcomes = {**kept, **after}

    def show(self, name: str) -> Iterator[Part]:
        """The rows of a node, and nothing else. Raises Superseded."""
        if self._newest is not None:
            with self._newest.in_use() as definitions, self._spark.fresh(self._group) as spark:
                part = self._show(definitions, name, spark)
                self._go_on()
                self._shown = [name]
                yield part

    def prepare(self) -> Iterator[str]:
        """Steps for while nobody waits: they compute what the last version that worked makes of the records,
        so that the next save need not. Raises Superseded."""
        version = self._working
        for name in list(version.definitions.pipelines) if version is not None else ():
            if version is self._working and name not in self._outcomes:
                self._compute_before([name])
                yield name

    def has_news(self) -> bool:
        """Whether records came of which few were there. Of topics with enough of them, records are read with
        the next save."""
        try:
            return not self._records.is_full() and bool(self._records.outdated())
        except SamplingFailed:
            return False

    def neighbour(self, step: int) -> str | None:
        """The node `step` after the one that is shown, in the order of the files."""
        names = self.nodes
        if not names:
            return None
        at = names.index(self._shown[0]) if self._shown and self._shown[0] in names else -step
        return names[(at + step) % len(names)]

    # ---- parts

    def _read_newer(self) -> str:
        """Have newer records read. Returns why that is impossible, or nothing."""
        try:
            if self._records.drop_outdated():
                self._outcomes.clear()
        except SamplingFailed as error:
            return error.message
        return ""

    def _findings(self, version: Version, problem: str) -> list[Finding]:
        if not problem:
            return check(self._project, found=version.found, sampled=self._records.newest)
        top = Place(self._project.root / PROJECT_FILE, 1)
        advice = "The records that were read before are shown"
        findings = check(self._project, found=version.found, records=False)
        return in_order([*findings, Finding("warning", top, problem, advice)])

    def _touched(self, version: Version, saved: frozenset[Path]) -> set[str]:
        older = [each for each in (self._newest, self._working) if each is not None]
        if self._project.root / PROJECT_FILE in saved:
            return set(version.definitions.nodes)
        found: set[str] = set()
        for each in dict.fromkeys(older):
            found |= version.changed_since(each, saved)
        return found

    def _chosen(self, touched: set[str], definitions: Definitions) -> tuple[list[str], list[str]]:
        """The nodes to show, and others that changed."""
        nodes = definitions.nodes
        if self.wanted:
            return self.wanted, []
        if not touched:
            again = [name for name in self._shown if name in nodes]
            return again or list(definitions.pipelines)[:MOST_PREVIEWS], []
        names = [name for name in nodes if name in touched]
        return names[:MOST_PREVIEWS], names[MOST_PREVIEWS:]

    def _show(self, definitions: Definitions, name: str, spark: SparkSession) -> Shown:
        try:
            found = preview_of(self._project, definitions, name, self._records.first(self._last), spark)
        except PipelineError as error:
            return Shown(name, self._last, error=str(error))
        return Shown(name, self._last, found)

    def _gone(self, definitions: Definitions) -> list[str]:
        before = self._working.definitions.pipelines if self._working is not None else ()
        return [name for name in before if name not in definitions.pipelines]

    def _before(self, names: Sequence[str], *, computes: bool) -> dict[str, Outcome | None]:
        """What the last version that worked makes of the records; None for pipelines that it does not have.
        Those missing are unknown."""
        assert self._working is not None
        there = self._working.definitions.pipelines
        missing = [name for name in names if name in there and name not in self._outcomes]
        if missing and computes:
            self._compute_before(missing)
        found: dict[str, Outcome | None] = {name: None for name in names if name not in there}
        return found | {name: self._outcomes[name] for name in names if name in self._outcomes}

    def _compared_with(
        self, before: dict[str, Outcome | None], after: dict[str, Outcome], gone: Sequence[str]
    ) -> Compared:
        found = [compared(name, before[name], each) for name, each in after.items() if name in before]
        found += [compared(name, self._outcomes.get(name, Outcome()), None) for name in gone]
        return Compared(found, [name for name in after if name not in before])

    def _plan_findings(
        self, definitions: Definitions, names: Sequence[str], spark: SparkSession
    ) -> list[Finding]:
        nodes = {
            name: node
            for name, node in definitions.nodes.items()
            if name in names or not isinstance(node, Pipeline)
        }
        return in_order(list(check_plans(self._project, replace(definitions, nodes=nodes), spark)))

    def _compute_before(self, names: Sequence[str]) -> None:
        assert self._working is not None
        with self._working.in_use(), self._spark.fresh(self._group) as spark:
            self._outcomes |= self._outcomes_of(self._working, names, spark)

    def _outcomes_of(self, version: Version, names: Sequence[str], spark: SparkSession) -> dict[str, Outcome]:
        if not names:  # which would mean all
            return {}
        records = self._records.first(self._compared)
        found = outcomes(self._project, version.definitions, names, records, spark)
        self._go_on()
        return found

    def _go_on(self) -> None:
        if self._is_superseded():
            raise Superseded

    def _is_input(self, path: Path) -> bool:
        """Whether a file is read when rows are computed, and not imported."""
        return path.is_relative_to(self._project.schemas) or path == self._project.root / PROJECT_FILE


def _impatient(project: Project) -> Project:
    return replace(project, kafka={"default.api.timeout.ms": ANSWER_TIMEOUT_MS, **project.kafka})
