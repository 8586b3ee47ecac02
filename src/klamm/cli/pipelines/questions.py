"""What the commands `preview`, `lint --deep` and `diff` do once there is a project: they ask a question.

A question is answered on a Spark session of its own, or by a running `klamm pipeline dev`, which is sent the
question as JSON. Both run the same code, which writes to stdout and stderr. Spark is imported late.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import typer

from klamm.cli.output import Output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from klamm.pipelines.project import Project

FAILED_DIFF = 2
"""The exit status of a diff that could not be made, as 1 says that there are differences."""


@dataclass(frozen=True)
class LintQuestion:
    """The findings of lint, with those of Spark's analyser. Without `deep` no Spark is needed.

    Of all questions: `failed` is the exit status after an error, and `waiting` is shown on a terminal while
    Spark starts. `answer` writes the answer and returns the exit status; without a session it starts one, and
    stops it.
    """

    kind: ClassVar[str] = "lint"
    failed: ClassVar[int] = 1
    output: Output
    deep: bool = True

    @property
    def waiting(self) -> str:
        return "starting Spark to look at the plans …"

    def answer(self, project: Project, spark: SparkSession | None) -> int:
        from klamm.cli.pipelines.describing import finding_line, finding_value, findings_summary
        from klamm.cli.showing import write_values
        from klamm.pipelines.lint import check

        findings = check(project, deep=self.deep, spark=spark)
        if self.output is Output.TABLE:
            for finding in findings:
                typer.echo(finding_line(finding))
            typer.echo(findings_summary(project, findings), err=True)
        else:
            write_values([finding_value(finding) for finding in findings], self.output)
        return int(any(finding.severity == "error" for finding in findings))


@dataclass(frozen=True)
class PreviewQuestion:
    """The rows of a node."""

    kind: ClassVar[str] = "preview"
    failed: ClassVar[int] = 1
    node: str
    last: int
    all_columns: bool
    output: Output

    @property
    def waiting(self) -> str:
        return f"starting Spark to show {self.node} …"

    def answer(self, project: Project, spark: SparkSession | None) -> int:
        from klamm.cli.showing import write_rows
        from klamm.pipelines.preview import preview

        made = preview(project, self.node, self.last, spark)
        columns, rows = made.chosen(self.all_columns)
        write_rows(columns, rows, self.output)
        for rejection in made.rejections:
            typer.echo(f"klamm: {rejection}", err=True)
        if not made.rows:
            typer.echo(f"klamm: {self.node} returns no rows for the last {self.last} records", err=True)
        return 0


@dataclass(frozen=True)
class DiffQuestion:
    """What the present code and that of a revision make of the newest records."""

    kind: ClassVar[str] = "diff"
    failed: ClassVar[int] = FAILED_DIFF
    pipelines: tuple[str, ...]
    base: str
    last: int
    show: int
    output: Output

    @property
    def waiting(self) -> str:
        return f"starting Spark to compare with {self.base} …"

    def answer(self, project: Project, spark: SparkSession | None) -> int:
        from klamm.cli.showing import write_json, write_values
        from klamm.pipelines.revisions import taken_out

        with taken_out(project, self.base) as older:
            from klamm.cli.pipelines.differences import diff_lines, diff_value
            from klamm.pipelines.diff import diff

            differences = diff(project, older, self.pipelines, self.last, spark)
        if self.output is Output.TABLE:
            for line in diff_lines(differences, self.base, self.show):
                typer.echo(line)
        elif self.output is Output.JSON:
            values = [diff_value(each, self.show) for each in differences]
            write_json({"base": self.base, "last": self.last, "pipelines": values})
        else:
            write_values([diff_value(each, self.show) for each in differences], self.output)
        if any(each.error for each in differences):
            return FAILED_DIFF
        return int(any(each.is_different for each in differences))


AnyQuestion: TypeAlias = LintQuestion | PreviewQuestion | DiffQuestion

KINDS: tuple[type[AnyQuestion], ...] = (LintQuestion, PreviewQuestion, DiffQuestion)


def question_value(question: AnyQuestion) -> dict[str, Any]:
    """The question for JSON."""
    return {"kind": question.kind, **asdict(question)}


def question_of(value: dict[str, Any]) -> AnyQuestion:
    """From JSON. Raises ValueError."""
    given = dict(value)
    kind = given.pop("kind", None)
    wanted = next((each for each in KINDS if each.kind == kind), None)
    if wanted is None:
        raise ValueError(f"{kind!r} is not a kind of question")
    try:
        given["output"] = Output(given["output"])
        if "pipelines" in given:
            given["pipelines"] = tuple(given["pipelines"])
        return wanted(**given)
    except (KeyError, TypeError) as error:
        raise ValueError(f"the question is not complete: {error}") from None
