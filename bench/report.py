"""The end of a run: tables of figures with their ratios, tables of aims, the JSON with every round."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.aims import AIMS, Aim, Evaluation, evaluate
from bench.layouts import LAYOUTS, ONLY_IN_JSON, Layout, Ratio, layout_of
from bench.processes import CORES, describe_placement
from bench.runner import Results

SMALL_RATIO = 0.1


def format_number(value: float | None) -> str:
    if value is None:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def format_median(results: Results, key: tuple[str, str, str], contestant: str) -> str:
    """The median, with the least and the most of the rounds."""
    values = results.rounds[key].get(contestant)
    if not values:
        return "–"
    text = format_number(results.median(*key, contestant))
    if len(values) > 1:
        text += f" [dim]{format_number(min(values))}…{format_number(max(values))}[/dim]"
    return text


def format_ratio(results: Results, key: tuple[str, str, str], ratio: Ratio) -> str:
    ours, reference = results.median(*key, ratio.ours), results.median(*key, ratio.reference)
    return ratio_text(ours / reference) if ours is not None and reference else "–"


def ratio_text(value: float) -> str:
    """Two digits that say something, also of a small fraction."""
    return f"{value:.2f}×" if value >= SMALL_RATIO else f"{value:.2g}×"


def figures_table(results: Results, layout: Layout) -> Table:
    table = Table(title=f"Medians of all rounds (least…most): {layout.name}", title_justify="left")
    for heading in ("what", "figure"):
        table.add_column(heading)
    for heading in (*layout.contestants, *(ratio.heading for ratio in layout.ratios)):
        table.add_column(heading, justify="right")
    previous_section = previous_case = ""
    sections = list(dict.fromkeys(section for section, _, _ in results.rounds))
    for key in sorted(results.rounds, key=lambda key: sections.index(key[0])):
        section, case, metric = key
        if metric in ONLY_IN_JSON or layout_of(section) is not layout:
            continue
        if section != previous_section:
            table.add_section()
            table.add_row(f"[bold]{section}[/bold]")
        table.add_row(
            case if (section, case) != (previous_section, previous_case) else "",
            metric,
            *(format_median(results, key, contestant) for contestant in layout.contestants),
            *(format_ratio(results, key, ratio) for ratio in layout.ratios),
        )
        previous_section, previous_case = section, case
    return table


def format_bound(aim: Aim) -> str:
    sign, bound = ("≥", aim.at_least) if aim.at_least is not None else ("≤", aim.at_most)
    assert bound is not None
    number = f"{bound:,.0f}" if bound >= 100 else f"{bound:g}"
    return f"{sign} {number} {aim.compared.value}".strip()


def format_measured(aim: Aim, evaluation: Evaluation) -> str:
    is_ratio = aim.compared.value.startswith("×")
    if evaluation.measured is None or not is_ratio:
        return format_number(evaluation.measured)
    return ratio_text(evaluation.measured)


def aims_table(title: str, evaluations: dict[Aim, Evaluation]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("aim", "bound", "measured", "reached"):
        table.add_column(heading)
    for aim, evaluation in evaluations.items():
        if evaluation.is_reached is None:
            reached = "[dim]not measured[/dim]"
        else:
            reached = "[green]yes[/green]" if evaluation.is_reached else "[red]no[/red]"
        table.add_row(aim.text, format_bound(aim), format_measured(aim, evaluation), reached)
    return table


def print_report(console: Console, results: Results) -> None:
    for layout in LAYOUTS:
        if any(layout_of(section) is layout for section, _, _ in results.rounds):
            console.print(figures_table(results, layout))
            evaluations = {aim: evaluate(results, aim) for aim in layout.aims}
            if any(evaluation.measured is not None for evaluation in evaluations.values()):
                console.print(aims_table(layout.aims_title, evaluations))
    console.print(f"Placement: {describe_placement()}. MB are 10^6 bytes.", highlight=False)
    for failure in results.failures:
        console.print("failed: " + failure.replace("[", r"\["), style="red", highlight=False)


def machine_description() -> dict[str, Any]:
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": model,
        "cores": len(CORES),
        "memory_gb": round(memory_bytes / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "placement": describe_placement(),
    }


def write_json(path: Path, results: Results, sections: list[str], is_quick: bool, seconds: float) -> None:
    figures = [
        {
            "section": section,
            "case": case,
            "metric": metric,
            "medians": {name: results.median(section, case, metric, name) for name in rounds},
            "rounds": rounds,
        }
        for (section, case, metric), rounds in results.rounds.items()
    ]
    evaluations = [(aim, evaluate(results, aim)) for aim in AIMS]
    document = {
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": is_quick,
        "sections": sections,
        "seconds": round(seconds, 1),
        "machine": machine_description(),
        "figures": figures,
        "aims": [
            {
                **aim._asdict(),
                "compared": aim.compared.value,
                "measured": evaluation.measured,
                "reached": evaluation.is_reached,
            }
            for aim, evaluation in evaluations
        ],
        "failures": results.failures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
