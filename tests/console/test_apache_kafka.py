"""The console shows the same of Apache Kafka: rates from offsets, sizes from log directories."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.console.running import browser, console_of
from tests.peers.apache_kafka import ApacheKafka
from tests.waiting import wait_until

import klamm

pytestmark = pytest.mark.long


def test_pages_and_actions_with_apache_kafka(tmp_path: Path) -> None:
    with ApacheKafka() as kafka, console_of(kafka.bootstrap, tmp_path) as console:
        with klamm.Admin(kafka.bootstrap) as admin, klamm.Producer(kafka.bootstrap) as producer:
            admin.create_topic("orders", 3)
            for number in range(30):
                producer.send("orders", b"{}", partition=number % 3)
            producer.flush()
            admin.alter_group_offsets("billing", {("orders", number): 4 for number in range(3)})
        wait_until(lambda: console.ask("/api/v1/groups/billing")[0] == 200, "the group is seen")
        wait_until(lambda: console.get("/topics/orders")["records"] == 30, "the records are counted")
        wait_until(lambda: console.get("/topics/orders")["size_bytes"], "the size is known")
        assert console.get("/groups/billing")["group"]["lag"] == 18
        assert console.get("/brokers")[0]["directories"]
        seek = "/api/v1/groups/billing/seek"
        assert console.ask(seek, {"to": "start"})[1]["read_again"] == 12
        change = {"set": {"retention.ms": "60000"}}
        status, found = console.ask("/api/v1/topics/orders/configs", change, "PATCH")
        assert (status, found["undo"]) == (200, {"set": {}, "unset": ["retention.ms"]})
        with browser() as chromium, chromium.page(console) as page:
            for path in (
                "/",
                "/topics",
                "/topics/orders",
                "/topics/orders/consumers",
                "/groups",
                "/groups/billing",
            ):
                page.goto(path)
                expect(page.locator("h1")).to_be_visible()
            for path in ("/topics/orders/configuration", "/brokers", "/metrics"):
                page.goto(path)
                expect(page.locator(".k-table, .k-chart").first).to_be_visible()
