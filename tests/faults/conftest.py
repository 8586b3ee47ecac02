"""A broker process for each test, and the checks that all of them end with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.abuse.broker_process import BrokerProcess


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Running; when the test is over its log must hold no failure of its own."""
    with BrokerProcess(tmp_path / "data", tmp_path / "broker.log") as process:
        yield process
        process.check_log()
