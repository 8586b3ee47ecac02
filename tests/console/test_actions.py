"""A real browser changes things, with what the dialogs say before and the undo after."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect
from tests.console.running import PHONE, Chromium, RunningConsole

import klamm
from klamm.client.admin.types import ConfigResource
from klamm.testing import Broker


@pytest.fixture(scope="module", autouse=True)
def admin(broker: Broker) -> Iterator[klamm.Admin]:
    with klamm.Admin(broker.bootstrap) as admin, klamm.Producer(broker.bootstrap) as producer:
        admin.create_topic("orders", 3)
        for number in range(30):
            producer.send("orders", b"{}", partition=number % 3)
        producer.flush()
        admin.alter_group_offsets("billing", {("orders", number): 4 for number in range(3)})
        yield admin


def test_a_topic_is_created_and_deleted_by_its_name(
    console: RunningConsole, chromium: Chromium, admin: klamm.Admin
) -> None:
    with chromium.page(console) as page:
        page.goto("/topics")
        page.get_by_role("button", name="Create topic").click()
        dialog = page.locator(".k-dialog")
        create = dialog.get_by_role("button", name="Create", exact=True)
        expect(create).to_be_disabled()
        dialog.get_by_label("Name").fill("not a name")
        create.click()
        expect(dialog.get_by_role("alert")).to_contain_text("not a name")
        dialog.get_by_label("Name").fill("made")
        dialog.get_by_label("Partitions").fill("2")
        dialog.get_by_label("Settings").fill("retention.ms=60000")
        command = "klamm topic create made --partitions 2 --config retention.ms=60000 -b"
        expect(dialog.locator(".k-command")).to_contain_text(command)
        create.click()
        expect(page.locator("h1")).to_have_text("made")
        expect(page.locator(".k-snack")).to_contain_text("Created made with 2 partitions")
        assert len(admin.describe_topic("made").partitions) == 2

        page.get_by_role("button", name="More partitions").click()
        dialog.get_by_label("How many it is to have").fill("3")
        dialog.get_by_role("button", name="Add partitions").click()
        expect(page.locator("tbody tr")).to_have_count(3)

        page.get_by_role("button", name="Delete").click()
        delete = dialog.get_by_role("button", name="Delete")
        dialog.get_by_label("Type made to delete it").fill("mad")
        expect(delete).to_be_disabled()
        dialog.get_by_label("Type made to delete it").fill("made")
        delete.click()
        expect(page).to_have_url(re.compile("/topics$"))
        expect(page.locator(".k-snack")).to_contain_text("Deleted made")
        assert "made" not in admin.list_topics()


def test_a_setting_is_changed_with_a_preview_and_undone(
    console: RunningConsole, chromium: Chromium, admin: klamm.Admin
) -> None:
    def retention() -> str | None:
        return admin.describe_config(ConfigResource.topic("orders"), ["retention.ms"])["retention.ms"].value

    before = retention()
    with chromium.page(console, theme="light") as page:
        page.goto("/topics/orders/configuration?search=retention.ms")
        row = page.locator("tbody tr", has_text=re.compile("^retention.ms"))
        row.hover()
        row.get_by_role("button", name="Edit").click()
        dialog = page.locator(".k-dialog")
        dialog.get_by_label("Value").fill("60000")
        expect(dialog).to_contain_text(f"{before} → 60000")
        dialog.get_by_role("button", name="Set").click()
        expect(row).to_contain_text("60000")
        assert retention() == "60000"
        page.get_by_role("button", name="Undo").click()
        expect(page.locator(".k-snack")).to_contain_text("Undone")
        assert retention() == before


def test_offsets_are_moved_as_the_preview_says_and_moved_back(
    console: RunningConsole, chromium: Chromium, admin: klamm.Admin
) -> None:
    def offsets() -> list[int]:
        return [one.offset for _, one in sorted(admin.list_group_offsets("billing").items())]

    with chromium.page(console) as page:
        page.goto("/groups/billing")
        page.get_by_role("button", name="Move offsets").click()
        dialog = page.locator(".k-dialog")
        expect(dialog).to_contain_text("3 partitions, 12 records will be read again")
        dialog.get_by_role("button", name="Shift by").click()
        dialog.get_by_label("How many records").fill("2")
        expect(dialog).to_contain_text("3 partitions, 6 records will not be read")
        expect(dialog.locator("tbody tr").first).to_contain_text("orders046")
        expect(dialog.locator(".k-command")).to_contain_text("klamm group seek billing --by=2 -b")
        dialog.get_by_role("button", name="Move the offsets").click()
        expect(page.locator(".k-snack")).to_contain_text("Moved billing: 3 partitions")
        assert offsets() == [6, 6, 6]
        page.get_by_role("button", name="Undo").click()
        expect(page.locator(".k-snack")).to_contain_text("Undone")
        assert offsets() == [4, 4, 4]


def test_a_group_is_copied_and_the_copy_deleted_on_a_phone(
    console: RunningConsole, chromium: Chromium, admin: klamm.Admin
) -> None:
    with chromium.page(console, size=PHONE) as page:
        page.goto("/groups/billing")
        page.get_by_role("button", name="Copy").click()
        dialog = page.locator(".k-dialog")
        dialog.get_by_label("Name of the new group").fill("billing-2")
        dialog.get_by_role("button", name="Copy").click()
        expect(page.locator("h1")).to_have_text("billing-2")
        assert admin.group_lag("billing-2") == admin.group_lag("billing")
        page.get_by_role("button", name="Delete").click()
        dialog.get_by_label("Type billing-2 to delete it").fill("billing-2")
        dialog.get_by_role("button", name="Delete").click()
        expect(page).to_have_url(re.compile("/groups$"))
        assert "billing-2" not in {one.group for one in admin.list_groups()}


def test_a_command_is_copied_by_a_click(console: RunningConsole, chromium: Chromium) -> None:
    with chromium.page(console) as page:
        page.goto("/topics?create")
        page.locator(".k-dialog .k-command").click()
        expect(page.locator(".k-toast")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()").startswith("klamm topic create")
