"""Pipelines in a real browser: a project with the status and the table of a run, on a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from playwright.sync_api import Page, expect
from tests.console.running import PHONE, Chromium, RunningConsole, console_of
from tests.pipelines.projects import make_project

import klamm
from klamm.pipelines.progress import PipelineStatus
from klamm.pipelines.project import Project
from klamm.pipelines.state import State
from klamm.pipelines.status import write_status
from klamm.testing import Broker

HOSTILE = "<img src=x onerror=alert(1)>"

PIPELINES = """
    @source(topic="orders", schema="order INT")
    @expect("small", "order < 10", otherwise="dead_letter")
    def orders(rows):
        return rows

    @pipeline(to=to_table("orders"), trigger="2 seconds")
    def orders_table(orders):
        return orders

    @pipeline(to=topic("totals", key="order"), mode="update")
    def totals(orders):
        return orders
"""


@pytest.fixture(scope="module")
def project(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project whose run holds its lock: one pipeline runs, one has failed, and rows were refused."""
    folder = tmp_path_factory.mktemp("shop")
    made = make_project(folder, PIPELINES)
    with klamm.Admin(broker.bootstrap) as admin, klamm.Producer(broker.bootstrap) as producer:
        for name in ("orders", "totals", made.dead_letters):
            admin.create_topic(name, 1)
        for number in range(12):
            producer.send("orders", b"%d" % number)
        told = {"rule": "small", "error": HOSTILE, "pipeline": "orders_table", "source": "orders"}
        place = {"topic": "orders", "partition": "0", "offset": "11", "content": "record"}
        headers = [(f"klamm.{name}", text.encode()) for name, text in {**told, **place}.items()]
        producer.send(made.dead_letters, HOSTILE.encode(), headers=headers)
        producer.flush()
    row = {
        "item": [HOSTILE],
        "_topic": ["orders"],
        "_partition": pa.array([0], pa.int32()),
        "_offset": pa.array([3]),
        "_timestamp": pa.array([datetime.now(UTC)]),
    }
    write_deltalake(f"{made.tables}/orders", pa.table(row))
    state, now_ms = State(made), int(time.time() * 1000)
    running = PipelineStatus("orders_table", "table orders", "running", 1, 4, 750, 1200, 1199, 40.0, 17, 1)
    write_status(state, PipelineStatus(**{**running.to_json(), "started_ms": now_ms, "updated_ms": now_ms}))
    failed = PipelineStatus("totals", "topic totals", "failed", error=f"no room {HOSTILE}")
    write_status(state, failed)
    with state.lock("a test"):
        yield made


@pytest.fixture(scope="module")
def console(
    broker: Broker, project: Project, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningConsole]:
    folder = tmp_path_factory.mktemp("console")
    with console_of(broker.bootstrap, folder, "--project", str(project.root)) as running:
        yield running


def assert_harmless(page: Page) -> None:
    assert page.locator("img[src=x]").count() == 0


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_a_walk_through_a_pipeline(console: RunningConsole, chromium: Chromium, theme: str) -> None:
    with chromium.page(console, theme=theme) as page:
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        page.goto("/")
        page.get_by_role("link", name="Pipelines", exact=True).click()
        expect(page.locator(".k-sentence")).to_have_text("totals has failed.")
        expect(page.locator(".k-node-pipeline")).to_have_count(2)
        expect(page.locator(".k-graph path.k-broken")).to_have_count(1)
        page.locator(".k-node-pipeline", has_text="orders_table").click()
        expect(page.locator("h1")).to_have_text("orders_table")
        expect(page.locator(".k-sentence")).to_contain_text("17 records behind; a batch takes 750 ms")
        expect(page.locator(".k-table")).to_contain_text("order < 10")
        page.get_by_role("link", name="Rows", exact=True).click()
        expect(page.locator("tbody tr", has_text=HOSTILE)).to_have_count(1)
        page.get_by_role("link", name="History", exact=True).click()
        expect(page.locator("tbody tr", has_text="write")).to_have_count(1)
        page.get_by_role("link", name="Dead letters", exact=True).click()
        expect(page.locator("tbody tr", has_text=HOSTILE)).to_have_count(1)
        assert_harmless(page)
        page.get_by_role("link", name="orders-0 at 11").click()
        expect(page.locator("h1")).to_have_text("orders")
        expect(page.locator(".m-record")).to_contain_text("Offset 11")
        page.get_by_role("link", name="Pipelines", exact=True).last.click()
        expect(page.locator("tbody tr")).to_have_count(2)
        assert_harmless(page)


def test_a_redrive_is_asked_for_and_its_end_is_shown(console: RunningConsole, chromium: Chromium) -> None:
    with chromium.page(console) as page:
        page.goto("/pipelines/shop.orders_table/dead-letters")
        page.get_by_role("button", name="Redrive …").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.locator(".k-command")).to_contain_text("klamm pipeline redrive --pipeline=orders_table")
        expect(dialog.locator(".k-output")).not_to_contain_text("Asking")
        expect(dialog.get_by_role("button", name="Redrive", exact=True)).to_be_disabled()
        dialog.get_by_role("button", name="Cancel").click()
        path = "/api/v1/pipelines/shop.orders_table/redrive"
        assert console.ask(path, {"rule": "small"})[0] == 202
        expect(page.locator(".k-panel .k-tag.k-good")).to_have_text("done")
        assert console.get("/pipelines/shop.orders_table/redrive")["status"] == 0


def test_on_a_phone_the_graph_is_a_list(console: RunningConsole, chromium: Chromium) -> None:
    with chromium.page(console, size=PHONE) as page:
        page.goto("/pipelines")
        expect(page.locator(".k-flows li")).to_have_count(2)
        expect(page.locator(".k-flows")).to_be_visible()
        expect(page.locator(".k-graph-scroll")).to_be_hidden()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_api_has_what_the_pages_show(console: RunningConsole) -> None:
    listed = console.get("/pipelines")
    rows = {row["key"]: row for row in listed["pipelines"]}
    assert (rows["shop.orders_table"]["state"], rows["shop.orders_table"]["lag"]) == ("running", 17)
    assert rows["shop.totals"]["error"].startswith("no room")
    graph = console.get("/pipelines/graph")
    assert {(edge["source"], edge["target"], edge["tone"]) for edge in graph["edges"]} >= {
        ("topic orders", "pipeline shop.orders_table", ""),
        ("pipeline shop.orders_table", "topic shop.dead-letters", "broken"),
        ("producers orders", "topic orders", ""),
    }
    assert console.get("/pipelines/orders_table/rows?limit=1")["rows"][0][0] == HOSTILE
    assert len(console.get("/pipelines/orders_table/versions")["versions"]) == 1
    assert console.get("/pipelines/orders_table/history")["lag"]
    letters = console.get("/pipelines/orders_table/dead-letters")
    assert letters["rules"] == {"small": 1}
    assert console.ask("/api/v1/pipelines/none")[0] == 404
    assert console.ask("/api/v1/pipelines/totals/rows")[0] == 409


def test_without_a_project_the_page_teaches(broker: Broker, chromium: Chromium, tmp_path: Path) -> None:
    with (
        console_of(broker.bootstrap, tmp_path, "--read-only") as console,
        chromium.page(console) as page,
    ):
        page.goto("/pipelines")
        expect(page.locator(".k-empty code")).to_contain_text("klamm pipeline init")
        status, told = console.ask("/api/v1/pipelines/shop.x/redrive", {})
        assert (status, "read-only" in told["error"]) == (403, True)
