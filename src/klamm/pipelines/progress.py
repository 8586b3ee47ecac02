"""How a pipeline is doing, made of what Spark tells after each batch. A core.

Spark's progress of one batch goes in as its JSON, a PipelineStatus comes out. All counts of a status are
those of the same batches: the ones that the present run has finished, up to `batch`. `rate` is what came in
over the last seconds, so that the rate falls to zero when nothing comes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from klamm.pipelines.counting import NodeCounts, read_counts
from klamm.pipelines.definitions import Otherwise
from klamm.pipelines.positions import Position, is_position, records_between
from klamm.pipelines.retrying import Retry

PipelineState: TypeAlias = Literal[
    "starting", "running", "retrying", "finished", "stopped", "failed", "killed"
]
ENDED: tuple[PipelineState, ...] = ("finished", "stopped", "failed", "killed")

RATE_WINDOW_MS = 10_000
"""What the rate looks back on: long enough for batches of seconds, short enough to show a stop."""


@dataclass(frozen=True)
class PipelineStatus:
    """How one pipeline is doing at one moment: for a terminal and a status file."""

    pipeline: str
    sink: str
    state: PipelineState = "starting"
    generation: int = 0
    batch: int | None = None
    """The number of the last batch that was finished."""
    batch_ms: int | None = None
    """How long that batch took, from the look for new records to the commit of what they became."""
    rows_in: int = 0
    rows_out: int = 0
    rate: float = 0.0
    """Records per second that came in."""
    lag: int | None = None
    """Records that are in the topics and not in a finished batch; None until Spark has told the ends."""
    dead_letters: int = 0
    undecodable: int = 0
    rules: Mapping[str, int] = field(default_factory=dict)
    """Rows for which a rule did not hold, by `<node>: <rule>`."""
    too_late: int = 0
    """Rows that operators with state dropped, because they were older than the watermark."""
    unknown_fields: Mapping[str, str] = field(default_factory=dict)
    """By source whose records have fields that its schema does not have: the name of one such field."""
    note: str = ""
    error: str = ""
    error_detail: str = ""
    retry: int = 0
    """In the state "retrying": which retry follows, of `retries`, in about `retry_in_s` seconds."""
    retries: int = 0
    retry_in_s: int = 0
    started_ms: int = 0
    updated_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PipelineStatus:
        """A status from its JSON; fields that this version does not know are left out."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: part for name, part in value.items() if name in known})


class Tally:
    """Adds up the progress of one pipeline.

    `rules` says of each rule, by `<node>: <rule>`, what happens to rows for which the rule does not hold.
    `sink_counts` says that the sink itself counts the rows it writes, and calls `wrote`.
    """

    def __init__(
        self,
        pipeline: str,
        sink: str,
        now_ms: int,
        rules: Mapping[str, Otherwise] | None = None,
        sink_counts: bool = False,
    ) -> None:
        self.status = PipelineStatus(pipeline, sink, started_ms=now_ms, updated_ms=now_ms)
        self._rules = rules or {}
        self._sink_counts = sink_counts
        self._written_rows: dict[int, int] = {}  # by batch, of batches whose progress has not come yet
        self._recent: list[tuple[int, int]] = []

    def started(self, generation: int, now_ms: int) -> None:
        self._change(now_ms, state="running", generation=generation, error="", error_detail="", **_NO_RETRY)

    def wrote(self, batch: int, rows: int) -> None:
        """A sink that counts its rows has written those of a batch.

        The status shows them together with what Spark tells of the batch, which comes a moment later: the
        counts of a status are those of the same finished batches.
        """
        self._written_rows[batch] = rows

    def noted(self, note: str, now_ms: int) -> None:
        self._change(now_ms, note=note)

    def ended(self, state: PipelineState, now_ms: int, error: str = "", detail: str = "") -> None:
        self._recent.clear()
        self._change(now_ms, state=state, error=error, error_detail=detail, rate=0.0, **_NO_RETRY)

    def retrying(self, retry: Retry, retries: int, now_ms: int, error: str, detail: str) -> None:
        """The pipeline has failed, and is started again after a pause."""
        self._recent.clear()
        self._change(
            now_ms,
            state="retrying",
            error=error,
            error_detail=detail,
            rate=0.0,
            retry=retry.number,
            retries=retries,
            retry_in_s=_seconds_until(retry, now_ms),
        )

    def starting(self, now_ms: int) -> None:
        """The pause before a retry is over."""
        self._change(now_ms, state="starting", error="", error_detail="", **_NO_RETRY)

    def waited(self, retry: Retry, now_ms: int) -> None:
        """Bring the seconds until the retry up to date."""
        seconds = _seconds_until(retry, now_ms)
        if seconds != self.status.retry_in_s:
            self._change(now_ms, retry_in_s=seconds)

    def apply(self, progress: Mapping[str, Any], now_ms: int) -> None:
        """Take in one progress of the query, as its JSON.

        While a query waits for records, its progress has the number of a batch that is not done yet, and no
        rows. Such a progress changes the lag and the rate alone.
        """
        rows = max(0, int(progress.get("numInputRows") or 0))
        self._recent.append((now_ms, rows))
        old = self.status
        counts = read_counts(progress.get("observedMetrics") or {})
        rules = dict(old.rules)
        unknown = dict(old.unknown_fields)
        for node in counts:
            for rule, failed in node.rules.items():
                name = rule_name(node.node, rule)
                rules[name] = rules.get(name, 0) + failed
            if node.unknown_field is not None:
                unknown[node.node] = node.unknown_field
        self._change(
            now_ms,
            batch=progress["batchId"] if was_executed(progress) else old.batch,
            batch_ms=_duration_ms(progress) if was_executed(progress) else old.batch_ms,
            rows_in=old.rows_in + rows,
            rows_out=old.rows_out + self._written(progress, counts),
            lag=lag_of(progress, old.lag),
            dead_letters=old.dead_letters + sum(node.dead_letters for node in counts),
            undecodable=old.undecodable + sum(node.undecodable for node in counts),
            rules=rules,
            too_late=old.too_late + dropped_by_watermark(progress),
            unknown_fields=unknown,
            rate=self._rate(now_ms),
        )

    def passed(self, now_ms: int) -> None:
        """Bring the rate up to date when nothing was told for a while."""
        rate = self._rate(now_ms)
        if rate != self.status.rate:
            self._change(now_ms, rate=rate)

    def _written(self, progress: Mapping[str, Any], counts: list[NodeCounts]) -> int:
        if self._sink_counts:
            return self._take_written(int(progress["batchId"])) if was_executed(progress) else 0
        told = int((progress.get("sink") or {}).get("numOutputRows", -1))
        if told >= 0:
            return told
        for node in counts:
            if node.node == self.status.pipeline:
                removed = sum(
                    failed
                    for rule, failed in node.rules.items()
                    if self._rules.get(rule_name(node.node, rule)) in ("drop", "dead_letter")
                )
                return max(0, node.rows - removed)
        return 0

    def _take_written(self, batch: int) -> int:
        """Rows of the batch, and of batches before it whose progress never came."""
        done = [number for number in self._written_rows if number <= batch]
        return sum(self._written_rows.pop(number) for number in done)

    def _rate(self, now_ms: int) -> float:
        self._recent = [(at, rows) for at, rows in self._recent if at > now_ms - RATE_WINDOW_MS]
        span_ms = min(RATE_WINDOW_MS, max(1000, now_ms - self.status.started_ms))
        return round(sum(rows for _, rows in self._recent) * 1000 / span_ms, 1)

    def _change(self, now_ms: int, **changes: Any) -> None:
        self.status = replace(self.status, updated_ms=now_ms, **changes)


_NO_RETRY: Mapping[str, Any] = {"retry": 0, "retries": 0, "retry_in_s": 0}


def _seconds_until(retry: Retry, now_ms: int) -> int:
    return max(0, -(-(retry.at_ms - now_ms) // 1000))


def unseen(recent: Sequence[Any], seen: str) -> tuple[list[dict[str, Any]], str]:
    """The progress reports after the one that is marked `seen`, as their JSON, the oldest first; and the mark
    of the newest. `recent` is a list in the JVM: each look at it is a call, and all but a few were seen."""
    found: list[dict[str, Any]] = []
    newest = seen
    for index in reversed(range(len(recent))):
        report = recent[index]
        mark = f"{report.batchId()} {report.timestamp()}"
        if mark == seen:
            break
        if not found:
            newest = mark
        found.append(json.loads(report.json()))
    return found[::-1], newest


def rule_name(node: str, rule: str) -> str:
    return f"{node}: {rule}"


def dropped_by_watermark(progress: Mapping[str, Any]) -> int:
    """How many rows of a batch were older than the watermark."""
    operators = progress.get("stateOperators") or []
    return sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in operators)


def was_executed(progress: Mapping[str, Any]) -> bool:
    """Whether a progress is that of a batch which was written, and not of a query that waits for records."""
    return "addBatch" in (progress.get("durationMs") or {})


def _duration_ms(progress: Mapping[str, Any]) -> int | None:
    told = (progress.get("durationMs") or {}).get("triggerExecution")
    return None if told is None else int(told)


def lag_of(progress: Mapping[str, Any], before: int | None) -> int | None:
    """How many records lie between the end of a batch and the ends of its topics, over all sources that tell
    both. When none does, the lag is what it was before."""
    known = [
        records_between(end, latest)
        for end, latest in (
            (_position(source.get("endOffset")), _position(source.get("latestOffset")))
            for source in progress.get("sources") or []
        )
        if end is not None and latest is not None
    ]
    return sum(known) if known else before


def _position(value: object) -> Position | None:
    return value if is_position(value) else None
