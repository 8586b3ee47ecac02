"""Pipelines as pages and the JSON API show them: the list, one pipeline, what it does with a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from klamm.console.views.overview import Tone
from klamm.console.views.rates import rate, spark
from klamm.console.watching.pipelines import IN, LAG, OUT, REFUSED, PipelineWatch, series
from klamm.operating.pipelines.looking import PipelineState
from klamm.operating.units import several
from klamm.pipelines.outline import TABLE
from klamm.pipelines.progress import ENDED

TONES: Mapping[str, str] = {
    "failed": Tone.BROKEN,
    "killed": Tone.BROKEN,
    "retrying": Tone.LOOK,
    "starting": Tone.LOOK,
    "running": Tone.GOOD,
    "finished": Tone.GOOD,
}


@dataclass(frozen=True, slots=True)
class RuleRow:
    """What is expected of rows, and how many broke it in the present run."""

    name: str
    condition: str
    otherwise: str
    broken: int


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """A pipeline. Counts are those of the present or the last run."""

    key: str
    name: str
    project: str
    group: str
    state: str
    tone: str
    sentence: str
    error: str
    reads_topics: Sequence[str]
    reads_tables: Sequence[str]
    sink: str
    target: str
    has_table: bool
    dead_letter_topic: str
    mode: str
    trigger: str
    code: str
    in_per_s: float | None
    out_per_s: float | None
    refused_per_s: float | None
    recent: list[float | None]
    recent_lag: list[float | None]
    batch: int | None
    batch_ms: int | None
    lag: int | None
    rows_in: int
    rows_out: int
    dead_letters: int
    undecodable: int
    too_late: int
    rules: Sequence[RuleRow]
    started_ms: int
    updated_ms: int


def pipeline_row(watch: PipelineWatch, pipeline: PipelineState) -> PipelineRow:
    outline, status = pipeline.outline, pipeline.status
    history, key = watch.history, pipeline.key
    sink, _, target = status.sink.partition(" ") if status is not None else ("", "", "")
    topics = outline.topics if outline is not None else ()
    tables = [each.name for each in outline.tables] if outline is not None else []
    runs = status is not None and status.state not in ENDED
    return PipelineRow(
        key,
        pipeline.name,
        pipeline.project,
        pipeline.group,
        pipeline.state,
        TONES.get(pipeline.state, ""),
        sentence(pipeline),
        status.error if status is not None else "",
        topics,
        tables,
        outline.sink if outline is not None else sink,
        outline.target if outline is not None else target,
        outline is not None and outline.sink == TABLE,
        watch.project_of(pipeline).dead_letters,
        outline.mode if outline is not None else "",
        outline.trigger if outline is not None else "",
        f"{outline.file}:{outline.line}" if outline is not None else "",
        rate(history, series(IN, key)) if runs else 0.0,
        rate(history, series(OUT, key)) if runs else 0.0,
        rate(history, series(REFUSED, key)) if runs else 0.0,
        spark(history, series(IN, key)),
        spark(history, series(LAG, key)),
        status.batch if status is not None else None,
        status.batch_ms if status is not None else None,
        status.lag if status is not None else None,
        status.rows_in if status is not None else 0,
        status.rows_out if status is not None else 0,
        status.dead_letters if status is not None else 0,
        status.undecodable if status is not None else 0,
        status.too_late if status is not None else 0,
        _rules(pipeline),
        status.started_ms if status is not None else 0,
        status.updated_ms if status is not None else 0,
    )


def pipeline_rows(watch: PipelineWatch) -> list[PipelineRow]:
    """All pipelines, those first that need a look."""
    order = {Tone.BROKEN: 0, Tone.LOOK: 1}
    rows = [pipeline_row(watch, each) for each in watch.pipelines]
    return sorted(rows, key=lambda row: (order.get(Tone(row.tone), 2) if row.tone else 2, row.key))


def pipelines_of_topic(watch: PipelineWatch, topic: str) -> list[tuple[PipelineRow, str]]:
    """The pipelines that have to do with a topic, and what: reads, writes, or refuses into."""
    found = []
    for row in pipeline_rows(watch):
        if topic in row.reads_topics:
            found.append((row, "reads it"))
        if row.sink == "topic" and row.target == topic:
            found.append((row, "writes it"))
        if topic == row.dead_letter_topic and row.dead_letters:
            found.append((row, "sends refused rows to it"))
    return found


def sentence(pipeline: PipelineState) -> str:
    """How a pipeline is, in words."""
    status = pipeline.status
    if status is None:
        return "It has not run yet: `klamm pipeline run` starts it."
    if status.state == "retrying":
        when = f"retry {status.retry} of {status.retries} in {status.retry_in_s} s"
        return f"It failed, and is started again ({when}): {status.error}"
    if status.state == "failed":
        return f"It failed: {status.error}"
    if status.state == "killed":
        return "Its process was killed. The next run goes on where it was."
    if status.state == "starting":
        return status.note or "It is starting."
    if status.state in ENDED:
        text = f"It has {status.state}, after {several(status.rows_in, 'record')}"
        if status.dead_letters:
            text += f", of which {status.dead_letters:,} were refused"
        return f"{text}."
    if status.lag:
        text = f"It runs, and is {several(status.lag, 'record')} behind"
    else:
        text = "It runs, and has read all records" if status.lag == 0 else "It runs"
    if status.batch_ms is not None:
        text += f"; a batch takes {duration_text(status.batch_ms)}"
    return f"{text}. {status.note}".strip() if status.note else f"{text}."


def duration_text(milliseconds: float) -> str:
    """840 ms, 2.4 s, 75 s."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def summary(watch: PipelineWatch) -> tuple[str, str]:
    """All pipelines in one line, and its tone."""
    rows = pipeline_rows(watch)
    broken = [row for row in rows if row.tone == Tone.BROKEN]
    if broken:
        names = ", ".join(row.name for row in broken[:3])
        more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
        return f"{names}{more} {'has' if len(broken) == 1 else 'have'} failed.", "broken"
    looks = [row for row in rows if row.tone == Tone.LOOK]
    running = sum(row.state == "running" for row in rows)
    text = f"{running} of {several(len(rows), 'pipeline')} running"
    refused = sum(row.dead_letters for row in rows)
    text += f"; {several(refused, 'row')} refused since they were started." if refused else "."
    return text, "look" if looks else ""


def _rules(pipeline: PipelineState) -> list[RuleRow]:
    counts = dict(pipeline.status.rules) if pipeline.status is not None else {}
    found = []
    for rule in pipeline.outline.rules if pipeline.outline is not None else ():
        broken = counts.pop(rule.name, 0)
        if rule.name.endswith(": decode") and not rule.condition and pipeline.status is not None:
            broken = pipeline.status.undecodable
        found.append(RuleRow(rule.name, rule.condition, rule.otherwise, broken))
    return [*found, *(RuleRow(name, "", "", count) for name, count in counts.items())]
