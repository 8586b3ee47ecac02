"""A real browser walks the pages, in both themes and at the width of a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect
from tests.console.running import DESKTOP, PHONE, Chromium, RunningConsole

import klamm
from klamm.testing import Broker

HOSTILE = "<img src=x onerror=alert(1)>/nightly"


@pytest.fixture(scope="module", autouse=True)
def contents(broker: Broker) -> Iterator[None]:
    """Topics, and groups that are behind; the name of one group is markup."""
    with klamm.Admin(broker.bootstrap) as admin, klamm.Producer(broker.bootstrap) as producer:
        admin.create_topic("orders", 3)
        admin.create_topics([klamm.NewTopic(f"made-{number:03d}", 1) for number in range(60)])
        for number in range(30):
            producer.send("orders", b"{}", key=str(number).encode(), partition=number % 3)
        producer.flush()
        admin.alter_group_offsets("billing", {("orders", number): 4 for number in range(3)})
        admin.alter_group_offsets(HOSTILE, {("orders", 0): 9})
    yield


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_a_walk_from_page_to_page_reloads_nothing(
    console: RunningConsole, chromium: Chromium, theme: str
) -> None:
    with chromium.page(console, theme=theme) as page:
        page.goto("/")
        expect(page.locator("h1")).to_have_text("Overview")
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        expect(page.locator(".k-pill")).to_have_text("healthy")
        page.evaluate("window.isTheSame = true")
        page.get_by_role("link", name="Topics", exact=True).click()
        page.get_by_label("Search topics").fill("orders")
        page.get_by_role("link", name="orders", exact=True).click()
        expect(page.locator("h1")).to_have_text("orders")
        expect(page).to_have_url(re.compile("/topics/orders$"))
        page.get_by_role("link", name="Consumers").click()
        page.get_by_role("link", name="billing", exact=True).click()
        expect(page.locator("h1")).to_have_text("billing")
        expect(page.locator(".k-sentence")).to_contain_text("18 records behind")
        page.go_back()
        expect(page.locator("h1")).to_have_text("orders")
        assert page.evaluate("window.isTheSame") is True


def test_a_name_that_is_markup_is_a_text(console: RunningConsole, chromium: Chromium) -> None:
    with chromium.page(console) as page:
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        page.goto("/groups")
        page.get_by_role("link", name=HOSTILE, exact=True).click()
        expect(page.locator("h1")).to_have_text(HOSTILE)
        page.reload()
        expect(page.locator("h1")).to_have_text(HOSTILE)
        assert page.title() == f"{HOSTILE} · Klamm"
        assert page.locator("img[src=x]").count() == 0


def test_the_url_says_what_a_table_shows(console: RunningConsole, chromium: Chromium) -> None:
    with chromium.page(console) as page:
        page.goto("/topics")
        expect(page.locator(".k-pager")).to_contain_text("1–50 of 61")
        page.get_by_role("button", name="Next page").click()
        expect(page.locator(".k-pager")).to_contain_text("51–61 of 61")
        expect(page).to_have_url(re.compile(r"\?page=2$"))
        page.get_by_label("Search topics").fill("made-04")
        expect(page.locator("tbody tr")).to_have_count(10)
        page.get_by_role("button", name="Topic ↑").click()
        expect(page.locator("tbody tr").first).to_contain_text("made-049")
        expect(page).to_have_url(re.compile(r"search=made-04&sort=-name"))
        page.reload()
        expect(page.locator("tbody tr").first).to_contain_text("made-049")
        expect(page.locator("tbody tr")).to_have_count(10)
        page.get_by_label("Search topics").fill("nothing like it")
        expect(page.locator(".k-empty")).to_contain_text("Nothing matches")


def test_the_keyboard_moves_in_a_table_and_opens(console: RunningConsole, chromium: Chromium) -> None:
    with chromium.page(console) as page:
        page.goto("/topics?search=made")
        expect(page.locator("tbody tr").first).to_contain_text("made-000")
        page.keyboard.press("/")
        expect(page.get_by_label("Search topics")).to_be_focused()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("j")
        page.keyboard.press("k")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("made-001")
        page.keyboard.press("g")
        page.keyboard.press("g")
        expect(page.locator("h1")).to_have_text("Groups")


def test_the_palette_finds_and_opens(console: RunningConsole, chromium: Chromium) -> None:
    with chromium.page(console) as page:
        page.goto("/")
        expect(page.locator("h1")).to_have_text("Overview")
        page.keyboard.press("Control+k")
        page.get_by_label("Search everything").last.fill("made 007")
        expect(page.locator(".k-palette li")).to_have_count(1)
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("made-007")


@pytest.mark.parametrize(
    "path", ["/", "/topics", "/topics/orders", "/topics/orders/consumers", "/groups", "/groups/billing"]
)
def test_nothing_is_wider_than_a_phone(console: RunningConsole, chromium: Chromium, path: str) -> None:
    with chromium.page(console, size=PHONE) as page:
        page.goto(path)
        expect(page.locator("h1")).to_be_visible()
        rail = page.get_by_role("navigation", name="Pages").bounding_box()
        assert rail is not None and rail["y"] > PHONE[1] / 2, "the rail is at the bottom"
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


def test_the_theme_is_chosen_and_kept(console: RunningConsole, chromium: Chromium) -> None:
    with chromium.page(console, theme="light", size=DESKTOP) as page:
        page.goto("/")
        theme = page.get_by_role("button", name="Theme")
        theme.click()
        theme.click()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        page.reload()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_a_path_without_a_page_says_so(console: RunningConsole, chromium: Chromium) -> None:
    with chromium.page(console, allow="404") as page:
        page.goto("/nowhere/at/all")
        expect(page.locator(".k-empty")).to_contain_text("There is no such page")
        page.goto("/topics/nothing")
        expect(page.locator(".k-empty")).to_contain_text("There is no topic nothing")
