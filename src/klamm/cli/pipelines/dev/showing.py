"""What `klamm pipeline dev` prints: sections on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

from rich.rule import Rule
from rich.text import Text

from klamm.cli.output import Output
from klamm.cli.pipelines.describing import finding_line, findings_summary
from klamm.cli.pipelines.differences import diff_lines
from klamm.cli.showing import console, write_rows
from klamm.pipelines.dev.saves import Compared, Found, Others, Part, Shown
from klamm.pipelines.findings import Finding
from klamm.pipelines.project import Project

THE_BASE = "the last version"
"""What differences are told of, where `diff` names a revision."""

_MARKS = {"+": "green", "-": "red", "~": "yellow"}
_SHOWN_FILES = 3


class Sections:
    """Prints on the present stdout. `show` is how many rows of a pipeline's differences are printed."""

    def __init__(self, project: Project, show: int) -> None:
        self._project = project
        self._show = show
        self._told: set[Finding] = set()

    def begin(self, title: str) -> None:
        if sys.stdout.isatty():
            console().print(Rule(Text(title, style="bold"), align="left", style="dim"))
        else:
            self._line(title)

    def part(self, part: Part) -> None:
        if isinstance(part, Found):
            self._findings(part)
        elif isinstance(part, Shown):
            self._rows(part)
        elif isinstance(part, Others):
            self._line(f"changed too: {', '.join(part.nodes)}", "dim")
        else:
            self._differences(part)
        sys.stdout.flush()

    def end(self, seconds: float, hint: str = "") -> None:
        self._line(" · ".join(filter(None, [f"{seconds:.1f} s", hint])), "dim")

    def note(self, text: str, style: str = "yellow") -> None:
        self._line(f"klamm: {text}", style)

    def _findings(self, part: Found) -> None:
        """Warnings that were printed after the last save already are only counted."""
        old = [each for each in part.findings if each in self._told and each.severity == "warning"]
        for finding in part.findings:
            if finding not in old:
                self._line(finding_line(finding), "red" if finding.severity == "error" else "yellow")
        if part.of_plans:
            return
        self._told = set(part.findings)
        as_before = f", {len(old)} as before" if old else ""
        self._line(f"{findings_summary(self._project, part.findings)}{as_before}", "dim")

    def _rows(self, part: Shown) -> None:
        self._line("")
        if part.preview is None:
            self._line(f"{part.node}: {part.error.replace(f'{self._project.root}/', '')}", "red")
            return
        count = len(part.preview.rows)
        rows = f"{count:,} row{'' if count == 1 else 's'}"
        self._line(f"{part.node}: {rows} of the newest {part.last:,} records", "bold")
        columns, chosen = part.preview.chosen()
        if chosen:
            write_rows(columns, chosen, Output.TABLE)
        for rejection in part.preview.rejections:
            self._line(str(rejection), "yellow")

    def _differences(self, part: Compared) -> None:
        self._line("")
        for line in diff_lines(part.differences, THE_BASE, self._show):
            self._line(line, _MARKS.get(line.strip()[:1], "") if line.startswith("  ") else "bold")
        for name in part.unknown:
            self._line(f"{name}: not compared, as {THE_BASE} was not computed before its inputs changed")

    def _line(self, text: str, style: str = "") -> None:
        console().print(Text(text, style=style))
        sys.stdout.flush()


def saved_title(project: Project, saved: Collection[Path]) -> str:
    """Which files were saved."""
    names = sorted(
        str(path.relative_to(project.root) if path.is_relative_to(project.root) else path) for path in saved
    )
    more = f" and {len(names) - _SHOWN_FILES} more" if len(names) > _SHOWN_FILES else ""
    return f"{', '.join(names[:_SHOWN_FILES])}{more} saved"
