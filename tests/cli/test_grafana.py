"""`klamm generate grafana-dashboard`: every metric that it asks for is in a scrape of a real broker."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli.commands import run_klamm
from tests.metrics.scraping import HTTP, scrape

import klamm
from klamm.cli.grafana import dashboard
from klamm.metrics.names import FAMILIES
from klamm.testing import Broker

NAME = re.compile(r"\b((?:kafka|klamm|process)_\w+)(?=[{,)\[\s]|$)")
SELECTOR = re.compile(r"\b((?:kafka|klamm|process)_\w+)\{([^}]*)\}")
OF_PROMETHEUS = {"job", "instance"}


def texts() -> list[str]:
    """All expressions of panels and variables."""
    made = dashboard()
    panels = [target["expr"] for panel in made["panels"] for target in panel.get("targets", ())]
    variables = [each["query"]["query"] for each in made["templating"]["list"] if each["type"] == "query"]
    return [*panels, *variables]


def test_every_metric_and_label_that_it_asks_for_is_scraped() -> None:
    with Broker(HTTP) as broker:
        with klamm.Admin(broker.bootstrap) as admin:
            admin.create_topic("orders", 1)
        with klamm.Producer(broker.bootstrap) as producer:
            producer.send("orders", b"v").result(30)
        with klamm.Consumer(
            broker.bootstrap, group="billing", topics=["orders"], start="earliest"
        ) as consumer:
            assert consumer.poll(timeout=30)
            consumer.commit()
            seen = scrape(broker)
    asked = 0
    for text in texts():
        for name in NAME.findall(text):
            asked += 1
            assert seen.series.get(name), f"{name} of {text} is not scraped"
        for name, selector in SELECTOR.findall(text):
            labels = set(re.findall(r"(\w+)[!=]", selector)) - OF_PROMETHEUS
            present = {label.partition("=")[0] for key in seen.series[name] for label in key}
            assert labels <= present, f"{name} has no labels {labels - present}"
    assert asked > 30
    never_shown = {family.name for family in FAMILIES if not any(family.name in text for text in texts())}
    assert len(never_shown) < len(FAMILIES) / 3, never_shown


def test_panels_lie_beside_each_other_and_differ() -> None:
    panels = dashboard()["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels if panel["type"] != "row"}) > 20


def test_the_command_prints_it(tmp_path: Path) -> None:
    with run_klamm(tmp_path, "generate", "grafana-dashboard") as command:
        assert command.wait() == 0, command
    assert json.loads("\n".join(command.printed)) == dashboard()
