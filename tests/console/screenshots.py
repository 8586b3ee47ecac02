"""Takes the pictures of docs/console: `make screenshots`, or `python -m tests.console.screenshots FOLDER`.

Three brokers in this process, with topics that get records all the time and groups at different paces; a real
console and a real Chromium look at them. At the end a broker is stopped, for the pictures of a cluster that
needs help. Look at every picture afterwards.
"""

from __future__ import annotations

import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Page
from tests.console.running import DESKTOP, PHONE, Chromium, RunningConsole, browser, console_of
from tests.waiting import wait_until

import klamm
from klamm.testing import Cluster

FOLDER = Path(__file__).resolve().parents[2] / "docs/console"
LARGEST_BYTES = 250_000
LOOKS = 18
"""Looks of the console before the first picture: a minute and a half, so that charts have a shape."""
PATIENCE_S = 600.0
TICK_S = 0.25
TOPICS = ("orders", "clicks", "payments.settled", "temperatures", "inventory", "orders.dead-letters")
GROUPS = (("billing", "orders", 0.012), ("search-index", "clicks", 0.0), ("audit", "payments.settled", 0.0))


class Picture(NamedTuple):
    """A picture: its name, the page, the theme, the size, and what is done before it is taken."""

    name: str
    path: str
    theme: str = "dark"
    size: tuple[int, int] = DESKTOP
    do: Callable[[Page], None] = lambda page: None


def _palette(page: Page) -> None:
    page.keyboard.press("Control+k")
    page.locator(".k-palette input").fill("or")
    page.locator(".k-palette li", has_text="orders").first.wait_for()


def _seek(page: Page) -> None:
    page.get_by_role("button", name="Move offsets").click()
    page.locator(".k-dialog tbody tr").first.wait_for()


def _create(page: Page) -> None:
    dialog = page.locator(".k-dialog")
    dialog.get_by_label("Name").fill("returns")
    dialog.get_by_label("Partitions").fill("6")
    dialog.locator(".k-command", has_text="returns").wait_for()


def _open_record(page: Page) -> None:
    page.locator(".m-list tbody tr").first.click()
    page.locator(".m-record .m-tree").first.wait_for()


HEALTHY = (
    Picture("overview-dark", "/"),
    Picture("overview-light", "/", "light"),
    Picture("topics-dark", "/topics?sort=-rate"),
    Picture("topics-light", "/topics?sort=-rate", "light"),
    Picture("topic-messages-light", "/topics/orders/messages", "light", DESKTOP, _open_record),
    Picture("topic-partitions-light", "/topics/orders/partitions", "light"),
    Picture("topic-consumers-dark", "/topics/orders/consumers"),
    Picture("topic-configuration-dark", "/topics/orders/configuration"),
    Picture("topic-create-light", "/topics?create", "light", DESKTOP, _create),
    Picture("groups-light", "/groups", "light"),
    Picture("group-dark", "/groups/billing"),
    Picture("group-light", "/groups/billing", "light"),
    Picture("group-seek-dark", "/groups/nightly", "dark", DESKTOP, _seek),
    Picture("brokers-light", "/brokers", "light"),
    Picture("metrics-dark", "/metrics"),
    Picture("metrics-light", "/metrics", "light"),
    Picture("palette-dark", "/topics", "dark", DESKTOP, _palette),
    Picture("phone-overview-dark", "/", "dark", PHONE),
    Picture("phone-group-light", "/groups/billing", "light", PHONE),
    Picture("phone-topics-dark", "/topics?sort=-rate", "dark", PHONE),
)
UNHEALTHY = (
    Picture("broker-down-overview-dark", "/"),
    Picture("broker-down-brokers-light", "/brokers", "light"),
)


class _Feed:
    """Writes records and has groups read them, until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        with klamm.Admin(bootstrap) as admin:
            admin.create_topics([klamm.NewTopic(name, 3, 3) for name in TOPICS])
            admin.alter_group_offsets("nightly", {("orders", number): 0 for number in range(3)})
        work: list[Callable[[], None]] = [self._write]
        work += [lambda one=one: self._read(*one) for one in GROUPS]  # type: ignore[misc]
        self._threads = [threading.Thread(target=one, daemon=True) for one in work]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        with klamm.Producer(self._bootstrap, acks="all") as producer:
            began = time.monotonic()
            number = 0
            while not self._stop.wait(TICK_S):
                wave = 1 + 0.6 * math.sin((time.monotonic() - began) / 12)
                counts = (26, int(60 * wave), int(14 * wave), 3, 2)
                for topic, count in zip(TOPICS, counts, strict=False):
                    for _ in range(count):
                        number += 1
                        value = b'{"order": %d, "item": "book", "amount": %d}' % (number, number % 90)
                        producer.send(topic, value, key=b"customer-%d" % (number % 500))

    def _read(self, group: str, topic: str, pause_s: float) -> None:
        options = {"client_id": f"{group}-1", "start": "earliest"}
        with klamm.Consumer(self._bootstrap, group=group, topics=[topic], **options) as consumer:  # type: ignore[arg-type]
            while not self._stop.is_set():
                for _ in consumer.poll(max_records=50, timeout=TICK_S):
                    if pause_s:
                        self._stop.wait(pause_s)


@contextmanager
def _fed(bootstrap: str) -> Iterator[None]:
    feed = _Feed(bootstrap)
    try:
        yield
    finally:
        feed.stop()


def take(chromium: Chromium, console: RunningConsole, pictures: Sequence[Picture], folder: Path) -> None:
    for picture in pictures:
        with chromium.page(console, theme=picture.theme, size=picture.size) as page:
            page.goto(picture.path)
            page.locator("h1").wait_for()
            for chart in page.locator(".k-chart").all():
                chart.locator("canvas").first.wait_for()
            picture.do(page)
            page.evaluate("document.fonts.ready")
            page.screenshot(path=folder / f"{picture.name}.png")
        size = (folder / f"{picture.name}.png").stat().st_size
        print(f"{picture.name}: {size:,} bytes", flush=True)
        assert size <= LARGEST_BYTES, f"{picture.name} is larger than {LARGEST_BYTES:,} bytes"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"offsets.topic.replication.factor": 3, "min.insync.replicas": 2}
    with (
        Cluster(3, settings) as cluster,
        tempfile.TemporaryDirectory() as home,
        console_of(cluster.bootstrap, Path(home)) as console,
        browser() as chromium,
        _fed(cluster.bootstrap),
    ):
        wait_until(lambda: looks(console) >= LOOKS, "the charts have a shape", PATIENCE_S)
        take(chromium, console, HEALTHY, folder)
        cluster.stop_broker(3)
        wait_until(
            lambda: console.get("/overview")["under_replicated"] > 0, "the broker is missed", PATIENCE_S
        )
        take(chromium, console, UNHEALTHY, folder)


def looks(console: RunningConsole) -> int:
    """How many looks the charts have. Asking counts as looking, so they go on."""
    return len(console.get("/metrics")[0]["lines"][0]["points"])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
