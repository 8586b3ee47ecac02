"""Puts the tables of a run into docs/BENCHMARKS.md: `python -m bench.markdown build/bench.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.peers import KAFKA, KLAMM, MACHINE
from bench.report import CONTESTANTS, ONLY_IN_JSON, format_number

PAGE = Path("docs/BENCHMARKS.md")
BEGIN = "<!-- tables of the run -->"
END = "<!-- end of the tables -->"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m bench.markdown RUN.json", file=sys.stderr)
        return 2
    document = json.loads(Path(arguments[0]).read_text())
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables(document)}\n{END}{after}")
    return 0


def tables(document: dict[str, Any]) -> str:
    machine = document["machine"]
    lines = [
        f"Taken {document['taken_at']} in {document['seconds'] / 60:.0f} minutes on {machine['cores']} cores "
        f"({machine['cpu']}), {machine['memory_gb']} GB, Linux {machine['kernel']}, "
        f"Python {machine['python']}; {machine['placement']}.",
        "",
        "## Aims",
        "",
        "| aim, one broker on one core | bound | measured | reached |",
        "|---|---|---|---|",
    ]
    lines += [_aim_row(aim) for aim in document["aims"]]
    section = None
    for figure in sorted(document["figures"], key=_section_order(document)):
        if figure["metric"] in ONLY_IN_JSON:
            continue
        if figure["section"] != section:
            section = figure["section"]
            lines += ["", f"## {section}", "", _heading(), "|---|---|" + "---:|" * (len(CONTESTANTS) + 1)]
        lines.append(_figure_row(figure))
    for failure in document["failures"]:
        lines += ["", f"Failed: {failure}"]
    return "\n".join(lines) + "\n"


def _section_order(document: dict[str, Any]) -> Any:
    sections = list(dict.fromkeys(figure["section"] for figure in document["figures"]))
    return lambda figure: sections.index(figure["section"])


def _heading() -> str:
    return f"| case | figure | {' | '.join(CONTESTANTS)} | {KLAMM} / Kafka |"


def _aim_row(aim: dict[str, Any]) -> str:
    sign, bound = ("≥", aim["at_least"]) if aim["at_least"] is not None else ("≤", aim["at_most"])
    measured = format_number(aim["measured"])
    if aim["compared"].startswith("×") and aim["measured"] is not None:
        measured = f"{aim['measured']:.2f}×"
    reached = {True: "yes", False: "**no**", None: "not measured"}[aim["reached"]]
    number = f"{bound:,.0f}" if bound >= 100 else f"{bound:g}"
    return f"| {aim['text']} | {sign} {number} {aim['compared']} | {measured} | {reached} |"


def _figure_row(figure: dict[str, Any]) -> str:
    medians = figure["medians"]
    klamm, kafka = medians.get(KLAMM), medians.get(KAFKA)
    ratio = f"{klamm / kafka:.2f}×" if klamm is not None and kafka else "–"
    cells = " | ".join(_cell(figure, name) for name in (MACHINE, KAFKA, KLAMM))
    return f"| {figure['case']} | {figure['metric']} | {cells} | {ratio} |"


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
