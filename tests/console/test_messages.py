"""A real browser works with the messages of a topic; what is in them is hostile."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect
from tests.console.running import PHONE, Chromium, RunningConsole

import klamm
from klamm.testing import Broker

HOSTILE = (
    b"<script>alert(1)</script>",
    b"</textarea><img src=x onerror=alert(2)>",
    b"{{ constructor.constructor('alert(3)')() }}",
    b"\x1b[31mred \xe2\x80\xaeexe.gnp",
    b"x" * 900_000,
)


@pytest.fixture(scope="module", autouse=True)
def contents(broker: Broker) -> Iterator[None]:
    with klamm.Admin(broker.bootstrap) as admin, klamm.Producer(broker.bootstrap) as producer:
        admin.create_topics(
            [klamm.NewTopic("orders", 2), klamm.NewTopic("hostile", 1), klamm.NewTopic("new", 1)]
        )
        admin.create_topic("dead", 1)
        for number in range(200):
            value = {"n": number, "customer": {"city": "Bern" if number % 50 == 7 else "Basel"}}
            producer.send("orders", json.dumps(value).encode(), b"%d" % (number % 9), partition=number % 2)
        for value in HOSTILE:
            producer.send("hostile", value, value[:40], [(value[:40].decode(), value[:200])])
        headers = [("klamm.rule", b"positive"), ("klamm.error", b"<b>-5</b>"), ("klamm.pipeline", b"billing")]
        headers += [("klamm.topic", b"orders"), ("klamm.partition", b"1"), ("klamm.offset", b"3")]
        producer.send("dead", b"{}", b"k", headers)
    yield


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_a_record_is_found_and_opened(console: RunningConsole, chromium: Chromium, theme: str) -> None:
    with chromium.page(console, theme=theme) as page:
        page.goto("/topics/orders")
        listed, record = page.locator(".m-list tbody tr"), page.locator(".m-record")
        expect(listed).to_have_count(50)
        page.get_by_role("button", name="Older").click()
        expect(listed).to_have_count(100)
        page.get_by_label("Filter messages").fill("customer.city = Bern")
        expect(listed).to_have_count(4)
        expect(page.locator(".m-progress")).to_contain_text("Scanned 200 of 200 · 4 found")
        page.get_by_label("Filter messages").press("ArrowDown")
        page.keyboard.press("Space")
        expect(record).to_contain_text("Offset 78")
        expect(record.locator(".m-tree").last).to_contain_text('"Bern"')
        page.keyboard.press("j")
        expect(record).to_contain_text("Offset 53")
        expect(page).to_have_url(re.compile(r"filter=customer\.city.*record=1\.53"))
        record.get_by_role("button", name="Hex").click()
        expect(record.locator(".m-hex").last).to_contain_text("7b 22 6e 22")
        record.get_by_role("button", name="Copy as CLI").click()
        expect(page.locator(".k-toast")).to_have_text("Copied")
        assert "--partition 1 --from 53:54" in page.evaluate("navigator.clipboard.readText()")
        page.reload()
        expect(listed).to_have_count(4)
        expect(record).to_contain_text("Offset 53")
        record.get_by_role("button", name="This key only").click()
        expect(page.get_by_label("Filter messages")).to_have_value('key = "8"')
        page.keyboard.press("Escape")
        expect(record).to_have_count(0)


def test_hostile_content_is_text(console: RunningConsole, chromium: Chromium) -> None:
    with chromium.page(console) as page:
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        page.goto("/topics/hostile?record=0.0")
        expect(page.locator(".m-list tbody tr")).to_have_count(5)
        record = page.locator(".m-record")
        for offset, text in (
            (0, "<script>alert(1)"),
            (1, "</textarea><img"),
            (2, "{{ constructor"),
            (3, "‹ESC›[31m"),
        ):
            page.locator(".m-list tbody tr").nth(4 - offset).click()
            expect(record.locator(".m-raw").last).to_contain_text(text)
            record.get_by_role("button", name="Headers").click()
            expect(record.locator(".m-headers")).to_contain_text(text[:8])
            record.get_by_role("button", name="Tree").click()
        expect(page.locator(".m-list")).to_contain_text("‹U+202E›")
        page.locator(".m-list tbody tr").first.click()
        expect(record).to_contain_text("only the beginning of 900,000 bytes is shown")
        assert page.locator("img[src=x]").count() == 0
        page.goto("/topics/dead")
        expect(page.locator(".m-list .k-broken")).to_have_text("positive: <b>-5</b>")
        page.locator(".m-list tbody tr").click()
        page.get_by_role("link", name="orders, partition 1, offset 3").click()
        expect(page.locator("h1")).to_have_text("orders")
        expect(record).to_contain_text("Partition 1 · Offset 3")


def test_messages_are_sent_and_followed_live(
    console: RunningConsole, chromium: Chromium, broker: Broker
) -> None:
    with chromium.page(console, allow="409") as page:
        page.goto("/topics/new")
        expect(page.locator(".k-empty")).to_contain_text("No messages yet")
        page.get_by_role("button", name="Produce").click()
        page.get_by_label("Value encoding").select_option("json")
        page.get_by_label("Value", exact=True).fill("{")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("alert")).to_contain_text("the value is not JSON")
        page.get_by_label("Value", exact=True).fill('{"n": 1}')
        page.get_by_label("Headers", exact=True).fill("trace=7")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("dialog")).to_contain_text("Sent to partition 0, offset 0")
        page.get_by_role("button", name="Close").click()
        listed = page.locator(".m-list tbody tr")
        expect(listed).to_have_count(1)
        page.get_by_role("button", name="Live").click()
        expect(page.locator(".m-progress")).to_contain_text("Live")
        with klamm.Producer(broker.bootstrap) as producer:
            producer.send("new", b"second").result()
            expect(listed.first).to_contain_text("second")
            page.get_by_role("button", name="Pause").click()
            producer.send("new", b"third").result()
            expect(page.locator(".m-progress")).to_contain_text("Paused")
            expect(listed).to_have_count(1)
            page.get_by_role("button", name="Go on").click()
        expect(listed).to_have_count(2)


def test_an_empty_range_says_where_messages_are(console: RunningConsole, chromium: Chromium) -> None:
    with chromium.page(console, size=PHONE) as page:
        page.goto("/topics/orders?range=1000:end")
        expect(page.locator(".k-empty")).to_contain_text("200 before it")
        page.get_by_role("button", name="Those before").click()
        expect(page.locator(".m-list tbody tr")).to_have_count(50)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
        page.locator(".m-list tbody tr").first.click()
        box = page.locator(".m-record").bounding_box()
        assert box is not None and box["width"] == PHONE[0]


def test_values_are_read_with_a_schema(console: RunningConsole, chromium: Chromium) -> None:
    with chromium.page(console, allow="409") as page:
        page.goto("/topics/hostile?record=0.0")
        page.get_by_label("Value as").select_option("avro")
        page.get_by_label("Schema", exact=True).fill("nonsense")
        page.get_by_role("button", name="Use it").click()
        expect(page.get_by_role("alert")).to_contain_text("this is not an Avro schema")
        page.get_by_label("Schema", exact=True).fill('"long"')
        page.get_by_role("button", name="Use it").click()
        expect(page.locator(".m-record")).to_contain_text("bytes follow the Avro value")
        expect(page).to_have_url(re.compile("format=avro&schema=[0-9a-f]{16}"))
