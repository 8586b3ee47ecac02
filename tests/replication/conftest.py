"""What the tests of fetchers share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.replication.played_leader import Scene


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    await scene.fetchers.shut_down()
