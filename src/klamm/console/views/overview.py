"""The health of the cluster in one look."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from klamm.console.views.groups import GroupRow, group_row, is_behind
from klamm.console.views.rates import rate
from klamm.console.views.topics import TopicRow, topic_row
from klamm.console.watching import history as series
from klamm.console.watching.history import History
from klamm.console.watching.picture import Picture
from klamm.operating.units import several

LISTED = 5
"""Groups and topics that the overview lists."""


class Tone(StrEnum):
    """How bad something is."""

    GOOD = "good"
    LOOK = "look"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the health, and the page that shows it."""

    tone: Tone
    text: str
    url: str


@dataclass(frozen=True, slots=True)
class Health:
    """All findings, the worst first; none if the cluster is healthy."""

    findings: list[Finding]

    @property
    def tone(self) -> Tone:
        return self.findings[0].tone if self.findings else Tone.GOOD

    @property
    def text(self) -> str:
        if not self.findings:
            return "healthy"
        more = len(self.findings) - 1
        return self.findings[0].text + (f", and {more} more" if more else "")


@dataclass(frozen=True, slots=True)
class Overview:
    """What the first page shows."""

    cluster_id: str
    controller_id: int | None
    health: Health
    brokers: int
    brokers_gone: int
    topics: int
    partitions: int
    offline: int
    under_replicated: int
    groups: int
    groups_behind: int
    in_per_s: float | None
    out_per_s: float | None
    lag: int
    size_bytes: int | None
    busiest: list[TopicRow]
    behind: list[GroupRow]


def health(picture: Picture, now_ms: int) -> Health:
    findings: list[Finding] = []
    if picture.problem:
        ago_s = max(0, now_ms - picture.taken_ms) // 1000
        text = f"no broker answers for {ago_s} s"
        findings.append(Finding(Tone.BROKEN, text, "/brokers"))
    if picture.offline:
        text = f"{several(picture.offline, 'partition')} offline"
        findings.append(Finding(Tone.BROKEN, text, "/topics?show=internal,unhealthy"))
    if picture.controller_id is None:
        findings.append(Finding(Tone.BROKEN, "no controller", "/brokers"))
    for broker in picture.brokers.values():
        since_ms = broker.silent_since_ms
        ago = f" for {max(0, now_ms - since_ms) // 1000} s" if since_ms else ""
        if broker.is_gone:
            findings.append(Finding(Tone.BROKEN, f"broker {broker.id} is not in the cluster", "/brokers"))
        elif since_ms is not None:
            findings.append(Finding(Tone.LOOK, f"broker {broker.id} has not answered{ago}", "/brokers"))
        failed = sum(1 for one in broker.directories or () if one.error is not None)
        if failed and not broker.is_gone:
            text = f"broker {broker.id} cannot use {several(failed, 'log directory').replace('ys', 'ies')}"
            findings.append(Finding(Tone.BROKEN, text, "/brokers"))
    if picture.under_replicated:
        text = f"{several(picture.under_replicated, 'partition')} under-replicated"
        findings.append(Finding(Tone.LOOK, text, "/topics?show=internal,unhealthy"))
    findings.sort(key=lambda one: one.tone is not Tone.BROKEN)
    return Health(findings)


def overview(picture: Picture, history: History, now_ms: int) -> Overview:
    topics = [one for one in picture.topics.values() if not one.is_internal]
    busiest = sorted(topics, key=lambda one: (-(rate(history, series.produced(one.name)) or 0.0), one.name))
    lagging = sorted(picture.groups.values(), key=lambda one: (-(one.lag or 0), one.name))
    sizes = [one.size_bytes for one in picture.brokers.values() if one.size_bytes is not None]
    return Overview(
        picture.cluster_id,
        picture.controller_id,
        health(picture, now_ms),
        sum(1 for one in picture.brokers.values() if not one.is_gone),
        sum(1 for one in picture.brokers.values() if one.is_gone),
        len(topics),
        picture.partitions,
        picture.offline,
        picture.under_replicated,
        len(picture.groups),
        sum(1 for one in picture.groups.values() if is_behind(one)),
        rate(history, series.ALL_PRODUCED),
        rate(history, series.ALL_CONSUMED),
        sum(one.lag or 0 for one in picture.groups.values()),
        sum(sizes) if sizes else None,
        [topic_row(picture, history, one) for one in busiest[:LISTED]],
        [group_row(history, one) for one in lagging[:LISTED] if one.lag],
    )
