"""Runs comparisons: every contestant once per round, so that changes of the machine affect all alike.

A section yields comparisons one after another and may set things up between them. A contestant that fails is
noted and left out of the rest of that comparison; the run goes on.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench import processes
from bench.load import Budget
from bench.peers import Broker, KafkaBroker, KlammBroker

Figures = dict[str, float]
Measure = Callable[[], Figures]
BrokerKind = type[KlammBroker] | type[KafkaBroker]


@dataclass(frozen=True)
class Comparison:
    """One line of the bench: what is compared, and how each contestant is measured."""

    case: str
    measures: Mapping[str, Measure]
    rounds: int | None = None  # the run's own number unless a comparison is long
    writes_bytes: int = 0  # how much a measurement may append to files


@dataclass
class Results:
    """Every figure of every round, by section, case, metric and contestant, in the order of the run."""

    rounds: dict[tuple[str, str, str], dict[str, list[float]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, section: str, case: str, contestant: str, figures: Figures) -> None:
        for metric, value in figures.items():
            self.rounds.setdefault((section, case, metric), {}).setdefault(contestant, []).append(value)

    def median(self, section: str, case: str, metric: str, contestant: str) -> float | None:
        values = self.rounds.get((section, case, metric), {}).get(contestant)
        return statistics.median(values) if values else None


@dataclass
class Bench:
    """What a section needs to know about the run, and where its figures go."""

    work_dir: Path
    is_quick: bool
    rounds: int
    kinds: list[BrokerKind]
    results: Results = field(default_factory=Results)
    brokers: dict[str, Broker] = field(
        default_factory=dict
    )  # the pair that most sections share, both running
    on_step: Callable[[str], None] = lambda _: None  # told what is measured now
    on_case: Callable[[], None] = lambda: None  # told when a comparison is done

    @property
    def long_rounds(self) -> int:
        """For comparisons of many seconds a round."""
        return (self.rounds + 1) // 2

    @property
    def budget(self) -> Budget:
        return Budget(0.4, 256_000_000) if self.is_quick else Budget(1.2, 640_000_000)

    @property
    def writes_bytes(self) -> int:
        """What one warm-up and one measurement append at most."""
        return self.budget.max_bytes + self.warm_up_budget.max_bytes

    @property
    def warm_up_budget(self) -> Budget:
        return Budget(0.1 if self.is_quick else 0.3, 64_000_000)

    def run(self, section: str, comparisons: Iterator[Comparison]) -> None:
        for comparison in comparisons:
            failed: set[str] = set()
            for _ in range(comparison.rounds or self.rounds):
                for contestant, measure in comparison.measures.items():
                    self.on_step(f"{section}: {comparison.case}: {contestant}")
                    if contestant in failed:
                        continue
                    processes.touch_memory(self.work_dir, comparison.writes_bytes)
                    try:
                        figures = measure()
                    except Exception as failure:
                        failed.add(contestant)
                        self.note_failure(section, comparison.case, contestant, failure)
                    else:
                        self.results.add(section, comparison.case, contestant, figures)
            self.on_case()

    def note_failure(self, section: str, case: str, contestant: str, failure: Exception) -> None:
        reason = str(failure) or type(failure).__name__
        self.results.failures.append(f"{section}: {case}: {contestant}: {reason}")
