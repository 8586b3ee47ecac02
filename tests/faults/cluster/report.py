"""The report of a run: what was done to the cluster, and what its clients saw of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tests.faults.cluster.clients import Wait


class Fault(NamedTuple):
    """One fault, from its beginning until all replicas were in sync again, on the monotonic clock."""

    kind: str
    victim: str
    began_s: float
    healed_s: float


class Report(NamedTuple):
    seed: int
    store: str
    minutes: float
    faults: Sequence[Fault]
    waits: Sequence[Wait]
    counts: dict[str, int]
    """What was counted: records, commits and the like."""
    anomalies: Sequence[str]

    def as_markdown(self) -> str:
        lines = [
            f"## On {self.store}, seed {self.seed}, {self.minutes:.1f} minutes",
            "",
            "| counted | |",
            "|---|---|",
            *(f"| {name} | {count:,} |" for name, count in self.counts.items()),
            "",
            "| fault | victims | times | longest wait for acks=all, s | longest until healed, s |",
            "|---|---|---|---|---|",
            *(self._row(kind) for kind in sorted({fault.kind for fault in self.faults})),
            "",
            "Anomalies: none." if not self.anomalies else "Anomalies:",
            "",
            *(f"- {anomaly}" for anomaly in self.anomalies),
        ]
        return "\n".join(lines).rstrip() + "\n"

    def _row(self, kind: str) -> str:
        faults = [fault for fault in self.faults if fault.kind == kind]
        victims = Counter(fault.victim for fault in faults)
        told = ", ".join(f"{victim} {count}" for victim, count in sorted(victims.items()))
        wait = max((self._longest_wait(fault) for fault in faults), default=0.0)
        healing = max(fault.healed_s - fault.began_s for fault in faults)
        return f"| {kind} | {told} | {len(faults)} | {wait:.1f} | {healing:.1f} |"

    def _longest_wait(self, fault: Fault) -> float:
        """Of the records that were acknowledged while the fault lasted."""
        return max(
            (wait.seconds for wait in self.waits if fault.began_s <= wait.acknowledged_s <= fault.healed_s),
            default=0.0,
        )
