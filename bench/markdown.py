"""Makes the pages and the picture of docs/ from the published figures.

`python -m bench` does this at the end of a run. `python -m bench.markdown` does it again without a run, and
`python -m bench.markdown RUN.json` publishes the figures of an earlier run first.

docs/BENCHMARKS.md is written by people, but for its tables of aims, which stand between two comments each.
docs/benchmarks/figures.md and docs/benchmarks/ratios.svg are written here as a whole.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import picture, published
from bench.aims import Aim, Evaluation, evaluate
from bench.layouts import LAYOUTS, ONLY_IN_JSON, Layout, layout_of
from bench.published import Measured, Published
from bench.report import format_bound, format_measured, format_number, format_ratio
from bench.runner import Results

PAGE = Path("docs/BENCHMARKS.md")
FIGURES_PAGE = Path("docs/benchmarks/figures.md")


def main(arguments: list[str]) -> int:
    if len(arguments) > 1:
        print("usage: python -m bench.markdown [RUN.json]", file=sys.stderr)
        return 2
    figures = published.load()
    for path in arguments:
        figures = published.merge(figures, *read_run(Path(path)))
    published.save(figures)
    write_pages(published.load())  # of the figures as they were saved, which are rounded
    return 0


def read_run(path: Path) -> tuple[Results, Measured, set[str]]:
    """The figures that a run wrote as JSON, when they were taken, and of which sections."""
    document = json.loads(path.read_text())
    results = Results(failures=document["failures"])
    for figure in document["figures"]:
        results.rounds[figure["section"], figure["case"], figure["metric"]] = figure["rounds"]
    return results, Measured(document["taken_at"], document["machine"]), set(document["sections"])


def write_pages(figures: Published) -> None:
    PAGE.write_text(filled(PAGE.read_text(), figures))
    FIGURES_PAGE.write_text(figures_page(figures))
    picture.FILE.write_text(picture.draw(figures.results))


def filled(text: str, figures: Published) -> str:
    """The page `text` with its tables of aims made anew."""
    for layout in LAYOUTS:
        begin, end = f"<!-- aims of the {layout.name} -->", f"<!-- end of the aims of the {layout.name} -->"
        before, found, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found and found_end):
            raise SystemExit(f"{PAGE} has no place for a table of aims: {begin} … {end}")
        text = f"{before}{begin}\n\n{aims_text(figures, layout)}\n{end}{after}"
    return text


def aims_text(figures: Published, layout: Layout) -> str:
    lines = [*_when(figures, layout), "| aim | bound | measured | reached |", "|---|---|---:|---|"]
    lines += [_aim_row(aim, evaluate(figures.results, aim)) for aim in layout.aims]
    return "\n".join(lines) + "\n"


def _aim_row(aim: Aim, evaluation: Evaluation) -> str:
    reached = {True: "yes", False: "**no**", None: "not measured"}[evaluation.is_reached]
    return f"| {aim.text} | {format_bound(aim)} | {format_measured(aim, evaluation)} | {reached} |"


def _when(figures: Published, layout: Layout) -> Iterator[str]:
    """A sentence for each run that the sections of `layout` are from."""
    runs: dict[str, list[str]] = {}
    for section, measured in figures.measured.items():
        if layout_of(section) is layout:
            machine = measured.machine
            text = (
                f"{measured.taken_at} on {machine['cores']} cores ({machine['cpu']}), "
                f"{machine['memory_gb']} GB, Linux {machine['kernel']}, Python {machine['python']}; "
                f"{machine['placement']}."
            )
            runs.setdefault(text, []).append(section)
    for text, sections in runs.items():
        yield f"Taken {text}" if len(runs) == 1 else f"{', '.join(sections)}: taken {text}"
        yield ""


def figures_page(figures: Published) -> str:
    lines = [
        "# All figures of the bench",
        "",
        "Made by `python -m bench` from [figures.json](figures.json). A cell is the median of the rounds,",
        "with the least and the most of them in brackets. What the figures mean is in",
        "[BENCHMARKS.md](../BENCHMARKS.md).",
    ]
    for layout in LAYOUTS:
        columns = len(layout.contestants) + len(layout.ratios)
        for section in figures.measured:
            if layout_of(section) is layout:
                lines += ["", f"## {section}", "", _heading(layout), "|---|---|" + "---:|" * columns]
                lines += [
                    _figure_row(figures.results, key, layout)
                    for key in figures.results.rounds
                    if key[0] == section and key[2] not in ONLY_IN_JSON
                ]
    return "\n".join(lines) + "\n"


def _heading(layout: Layout) -> str:
    headings = (*layout.contestants, *(ratio.heading for ratio in layout.ratios))
    return f"| case | figure | {' | '.join(headings)} |"


def _figure_row(results: Results, key: tuple[str, str, str], layout: Layout) -> str:
    cells = [_cell(results, key, name) for name in layout.contestants]
    cells += [format_ratio(results, key, ratio) for ratio in layout.ratios]
    return f"| {key[1]} | {key[2]} | {' | '.join(cells)} |"


def _cell(results: Results, key: tuple[str, str, str], name: str) -> str:
    values = results.rounds[key].get(name)
    if not values:
        return "–"
    text = format_number(results.median(*key, name))
    if len(values) > 1:
        text += f" ({format_number(min(values))}…{format_number(max(values))})"
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
