"""Puts the tables of a run into docs/BENCHMARKS.md: `python -m bench.markdown build/bench.json`.

The page has one part for brokers and one for clients. A run fills those parts that it has figures for, so
that the clients can be measured again without the brokers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.layouts import LAYOUTS, ONLY_IN_JSON, Layout, Ratio, layout_of
from bench.report import format_number

PAGE = Path("docs/BENCHMARKS.md")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m bench.markdown RUN.json", file=sys.stderr)
        return 2
    document = json.loads(Path(arguments[0]).read_text())
    text = PAGE.read_text()
    for layout in LAYOUTS:
        figures = _figures(document, layout)
        if figures:
            text = fill(text, layout, tables(document, layout, figures))
    PAGE.write_text(text)
    return 0


def fill(text: str, layout: Layout, tables_text: str) -> str:
    begin, end = f"<!-- tables of the {layout.name} -->", f"<!-- end of the tables of the {layout.name} -->"
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise SystemExit(f"{PAGE} has no place for tables: {begin} … {end}")
    return f"{before}{begin}\n\n{tables_text}\n{end}{after}"


def _figures(document: dict[str, Any], layout: Layout) -> list[dict[str, Any]]:
    return [
        figure
        for figure in document["figures"]
        if layout_of(figure["section"]) is layout and figure["metric"] not in ONLY_IN_JSON
    ]


def tables(document: dict[str, Any], layout: Layout, figures: list[dict[str, Any]]) -> str:
    machine = document["machine"]
    lines = [
        f"Taken {document['taken_at']} in {document['seconds'] / 60:.0f} minutes on {machine['cores']} cores "
        f"({machine['cpu']}), {machine['memory_gb']} GB, Linux {machine['kernel']}, "
        f"Python {machine['python']}; {machine['placement']}.",
        "",
        f"## {layout.aims_title.partition(',')[0]}",
        "",
        "| aim | bound | measured | reached |",
        "|---|---|---|---|",
    ]
    texts = {(aim.section, aim.text, aim.case) for aim in layout.aims}
    lines += [
        _aim_row(aim) for aim in document["aims"] if (aim["section"], aim["text"], aim["case"]) in texts
    ]
    section = None
    for figure in sorted(figures, key=_section_order(document)):
        if figure["section"] != section:
            section = figure["section"]
            columns = len(layout.contestants) + len(layout.ratios)
            lines += ["", f"## {section}", "", _heading(layout), "|---|---|" + "---:|" * columns]
        lines.append(_figure_row(figure, layout))
    for failure in document["failures"]:
        if layout_of(failure.partition(":")[0]) is layout:
            lines += ["", f"Failed: {failure}"]
    return "\n".join(lines) + "\n"


def _section_order(document: dict[str, Any]) -> Any:
    sections = list(dict.fromkeys(figure["section"] for figure in document["figures"]))
    return lambda figure: sections.index(figure["section"])


def _heading(layout: Layout) -> str:
    headings = (*layout.contestants, *(ratio.heading for ratio in layout.ratios))
    return f"| case | figure | {' | '.join(headings)} |"


def _aim_row(aim: dict[str, Any]) -> str:
    sign, bound = ("≥", aim["at_least"]) if aim["at_least"] is not None else ("≤", aim["at_most"])
    measured = format_number(aim["measured"])
    if aim["compared"].startswith("×") and aim["measured"] is not None:
        measured = f"{aim['measured']:.2f}×"
    reached = {True: "yes", False: "**no**", None: "not measured"}[aim["reached"]]
    number = f"{bound:,.0f}" if bound >= 100 else f"{bound:g}"
    return f"| {aim['text']} | {sign} {number} {aim['compared']} | {measured} | {reached} |"


def _figure_row(figure: dict[str, Any], layout: Layout) -> str:
    cells = [_cell(figure, name) for name in layout.contestants]
    cells += [_ratio(figure["medians"], ratio) for ratio in layout.ratios]
    return f"| {figure['case']} | {figure['metric']} | {' | '.join(cells)} |"


def _ratio(medians: dict[str, float], ratio: Ratio) -> str:
    ours, reference = medians.get(ratio.ours), medians.get(ratio.reference)
    return f"{ours / reference:.2f}×" if ours is not None and reference else "–"


def _cell(figure: dict[str, Any], name: str) -> str:
    rounds = figure["rounds"].get(name)
    if not rounds:
        return "–"
    text = format_number(figure["medians"][name])
    if len(rounds) > 1:
        text += f" ({format_number(min(rounds))}…{format_number(max(rounds))})"
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
