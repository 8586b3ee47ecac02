"""A network for a test, and proof that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator

from klamm.client.network.network import Network
from klamm.config.client_config import ClientConfig
from tests.client.leaks import Complaints, client_sockets
from tests.waiting import until


@contextlib.asynccontextmanager
async def network_to(*bootstrap: str, kind: str = "admin", **options: object) -> AsyncIterator[Network]:
    """A started network; after the block its tasks and sockets are gone, and asyncio has not complained."""
    tasks, sockets = asyncio.all_tasks(), client_sockets()
    complaints = Complaints()
    logging.getLogger("asyncio").addHandler(complaints)
    try:
        network = Network(ClientConfig(kind, bootstrap, None, options))
        await network.start()
        try:
            yield network
        finally:
            await network.close()
        assert not [task for task in asyncio.all_tasks() - tasks if task.get_name().startswith("klamm-")]
        # The loop closes a socket just after it has told its protocol.
        await until(lambda: client_sockets().keys() <= sockets.keys(), "the sockets are closed")
        gc.collect()
    finally:
        logging.getLogger("asyncio").removeHandler(complaints)
    assert not complaints.lines, complaints.lines
