"""The published figures, and that the pages and the picture of docs/ show exactly them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench.__main__ import is_published, parse_arguments
from bench.aims import AIMS, BROKER_AIMS, SHOWN_WITHOUT_AIM, Compared, evaluate
from bench.layouts import LAYOUTS
from bench.peers import KAFKA, KLAMM, KafkaBroker, KlammBroker
from bench.picture import HEADINGS, bars, draw
from bench.published import Measured, Published
from bench.runner import Bench, BrokerKind, Results

from bench import markdown, picture, published, report

REPOSITORY = Path(__file__).resolve().parents[2]
MACHINE = {"cpu": "c", "cores": 2, "memory_gb": 1.0, "kernel": "k", "python": "p", "placement": "free"}
OLD, NEW = Measured("2026-01-01T00:00:00Z", MACHINE), Measured("2026-02-02T00:00:00Z", MACHINE)
FASTER = next(aim for aim in BROKER_AIMS if aim.compared is Compared.TO_KAFKA and aim.at_least == 5)
SMALLER = next(aim for aim in BROKER_AIMS if aim.compared is Compared.TO_KAFKA and aim.at_most == 0.15)


def results_of(*figures: tuple[str, str, float], failures: tuple[str, ...] = ()) -> Results:
    results = Results(failures=list(failures))
    for section, case, value in figures:
        results.add(section, case, KLAMM, {"MB/s": value})
    return results


def medians(figures: Published) -> dict[tuple[str, str], float | None]:
    rounds = figures.results.rounds
    return {(key[0], key[1]): figures.results.median(*key, KLAMM) for key in rounds}


def test_the_documents_show_the_published_figures() -> None:
    figures = published.load(REPOSITORY / published.FILE)
    remedy = "run `python -m bench.markdown`"
    assert (REPOSITORY / picture.FILE).read_text() == draw(figures.results), remedy
    assert (REPOSITORY / markdown.FIGURES_PAGE).read_text() == markdown.figures_page(figures), remedy
    page = (REPOSITORY / markdown.PAGE).read_text()
    assert page == markdown.filled(page, figures), remedy


def test_the_picture_and_the_tables_of_aims_agree() -> None:
    """Read from the documents: each ratio of a table is in the picture, reached or missed alike."""
    page, drawing = (REPOSITORY / markdown.PAGE).read_text(), (REPOSITORY / picture.FILE).read_text()
    rows = re.findall(
        r"^\| (.+) \| ([≥≤]) .* × (?!machine).* \| ([\d.]+)× \| (yes|\*\*no\*\*) \|$", page, re.M
    )
    results = published.load(REPOSITORY / published.FILE).results
    compared = [aim for layout in LAYOUTS for aim in layout.aims if aim.compared in HEADINGS]
    assert len(rows) == sum(evaluate(results, aim).measured is not None for aim in compared)
    texts = re.findall(r'<text x="\d+" y="(\d+)"[^>]*>([^<]*)</text>', drawing)
    lines: dict[str, list[str]] = {}
    for y, text in texts:
        lines.setdefault(y, []).append(text)
    shown = [tuple(line) for line in lines.values()]
    for text, sign, ratio, reached in rows:
        line = next(line for line in shown if line[0] == text and line[2] != "no aim")
        factor = float(ratio) if sign == "≥" else 1 / float(ratio)
        assert float(line[1].rstrip("×")) == pytest.approx(factor, rel=0.06)  # both are rounded
        assert line[2] == ("✓" if reached == "yes" else "✗ missed")


def test_a_run_replaces_only_the_sections_that_it_was_asked_for() -> None:
    old = Published(
        results_of(("fetch", "a", 1), ("fetch", "gone", 1), ("start", "a", 1), ("start", "after", 1)),
        {"fetch": OLD, "start": OLD},
    )
    merged = published.merge(old, results_of(("fetch", "a", 2), ("start", "after", 2)), NEW, {"fetch"})
    assert medians(merged) == {("fetch", "a"): 2, ("start", "a"): 1, ("start", "after"): 2}
    assert merged.measured == {"fetch": NEW, "start": OLD}


def test_a_section_with_a_failure_keeps_its_published_figures() -> None:
    old = Published(results_of(("fetch", "a", 1), ("start", "a", 1)), {"fetch": OLD, "start": OLD})
    new = results_of(("fetch", "a", 2), ("start", "a", 2), failures=("fetch: a: Klamm: died",))
    merged = published.merge(old, new, NEW, {"fetch", "start"})
    assert medians(merged) == {("fetch", "a"): 1, ("start", "a"): 2}
    assert merged.measured == {"fetch": OLD, "start": NEW}


def test_published_figures_are_read_as_they_were_saved(tmp_path: Path) -> None:
    figures = Published(results_of(("fetch", "a", 1.5), ("fetch", "b", 15_547_695)), {"fetch": OLD})
    published.save(figures, tmp_path / "figures.json")
    assert published.load(tmp_path / "figures.json") == figures


def publish_a_run(kafka: float, klamm: float) -> None:
    """Publish one figure in the working directory, which holds no documents yet."""
    markdown.FIGURES_PAGE.parent.mkdir(parents=True)
    names = [layout.name for layout in LAYOUTS]
    comments = "".join(
        f"<!-- aims of the {name} -->\n<!-- end of the aims of the {name} -->\n" for name in names
    )
    markdown.PAGE.write_text(f"Kept.\n{comments}Kept too.\n")
    results = Results()
    for contestant, value in ((KAFKA, kafka), (KLAMM, klamm)):
        results.add(FASTER.section, FASTER.case, contestant, {FASTER.metric: value})
    report.write_json(Path("run.json"), results, [FASTER.section], is_quick=False, seconds=1.0)
    assert markdown.main(["run.json"]) == 0


def test_a_run_of_one_section_redraws_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    publish_a_run(kafka=100.0, klamm=777.0)
    assert "7.77×" in picture.FILE.read_text()
    page = markdown.PAGE.read_text()
    assert page.startswith("Kept.")
    assert page.endswith("Kept too.\n")
    assert "| 7.77× | yes |" in page
    assert "not measured" in page
    assert "777" in markdown.FIGURES_PAGE.read_text()


def test_a_run_writes_the_pages_that_its_saved_figures_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    publish_a_run(kafka=1.0, klamm=7.77499999999)  # saved as 7.775, which pages show as another number
    assert markdown.FIGURES_PAGE.read_text() == markdown.figures_page(published.load())


def test_a_bar_to_the_right_is_better_for_time_and_memory_too() -> None:
    results = Results()
    for contestant, value in ((KAFKA, 100.0), (KLAMM, 10.0)):
        results.add(SMALLER.section, SMALLER.case, contestant, {SMALLER.metric: value})
    bar = next(bar for bar in bars(results) if bar.text == SMALLER.text)
    assert bar.factor == pytest.approx(10)
    assert bar.bound == pytest.approx(1 / 0.15)
    assert bar.is_reached


def test_the_picture_tells_missed_aims_without_colour() -> None:
    results = Results()
    for contestant, value in ((KAFKA, 100.0), (KLAMM, 50.0)):
        results.add(FASTER.section, FASTER.case, contestant, {FASTER.metric: value})
    drawing = draw(results)
    assert drawing.count('class="missed"') == 2  # the legend's, and this one
    assert drawing.count("✗ missed") == 1
    assert "prefers-color-scheme: dark" in drawing


def test_a_row_without_a_bound_is_neither_reached_nor_missed() -> None:
    figures = published.load(REPOSITORY / published.FILE)
    assert {evaluate(figures.results, aim).is_reached for aim in SHOWN_WITHOUT_AIM} == {None}


def test_each_aim_has_a_figure_and_is_reached_or_missed() -> None:
    figures = published.load(REPOSITORY / published.FILE)
    for aim in AIMS:
        measured, is_reached = evaluate(figures.results, aim)
        assert measured is not None, f"{aim.text}: run the section {aim.section} of the bench"
        assert is_reached is not None


@pytest.mark.parametrize(
    ("arguments", "kinds", "expected"),
    [
        ([], [KlammBroker, KafkaBroker], True),
        (["--only", "fetch"], [KlammBroker, KafkaBroker], True),
        (["--quick"], [KlammBroker, KafkaBroker], False),
        ([], [KlammBroker], False),
        (["--no-publish"], [KlammBroker, KafkaBroker], False),
    ],
)
def test_a_run_that_compares_publishes_its_figures(
    arguments: list[str], kinds: list[BrokerKind], expected: bool, tmp_path: Path
) -> None:
    parsed = parse_arguments(arguments)
    assert is_published(parsed, Bench(tmp_path, parsed.quick, 1, kinds)) is expected
