"""One broker, one console and one browser for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.console.running import Chromium, RunningConsole, browser, console_of

from klamm.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module")
def console(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with console_of(broker.bootstrap, tmp_path_factory.mktemp("console")) as running:
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    with browser() as running:
        yield running
