"""Everything that runs on a loop runs on asyncio's own and on uvloop."""

from __future__ import annotations

from tests.client.network.conftest import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
