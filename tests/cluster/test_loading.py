"""The image that a new controller reads from the store; what the image says is checked in `events.py`."""

from __future__ import annotations

import asyncio
import gc

import pytest

from klamm.cluster import layout
from klamm.cluster.loading import read_image
from klamm.coordination.store import SessionExpired
from tests.cluster.events import CONTROLLER_EPOCH, Events


def test_a_session_that_ends_while_the_image_is_read_is_told_once():
    events = Events(1)
    events.create("t", [1])
    of_topics = {layout.topic_path("t"), layout.topic_config_path("t")}
    get, complaints = events.store.get, []

    async def get_unless_of_topic(path):
        if path in of_topics:
            raise SessionExpired("the session has ended")
        return await get(path)

    async def read():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        events.store.get = get_unless_of_topic
        with pytest.raises(SessionExpired):
            await read_image(events.store, 1, CONTROLLER_EPOCH)
        await asyncio.sleep(0)
        gc.collect()

    asyncio.run(read())
    assert complaints == []
