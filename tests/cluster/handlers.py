"""Asks handlers as a client would: over the codecs, on a real cluster service."""

from __future__ import annotations

from klamm.apis.registry import Request
from klamm.protocol.apis import API_VERSIONS
from klamm.protocol.codec import decode, encode
from klamm.replication.context import ReplicationContext
from klamm.replication.partitions import Partitions, TopicSettings
from klamm.storage.log_config import LogConfig
from klamm.storage.log_dirs import LogDirs
from tests.apis.outcomes import answer_of
from tests.replies import FakeReply

from .scenario import run

NOT_ASKED = -(2**31)


class Connection:
    client_host = "127.0.0.1"

    def __init__(self, listener_name):
        self.listener_name = listener_name


class FakeBroker:
    """What handlers of this file reach of a broker."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.node_id = 1
        no_logs = LogDirs((), now_ms=lambda: 0, report=print)
        context = ReplicationContext(self.node_id, lambda: 0)
        self.partitions = Partitions(context, no_logs, lambda topic: TopicSettings(LogConfig(), 1))

    @property
    def config(self):
        return self.cluster.config

    async def ask(self, module, message, version, listener_name="PLAINTEXT"):
        """The answer as a client would decode it, both ways over the wire."""
        received, _ = decode(type(message), version, memoryview(encode(message, version)))
        reply = FakeReply()
        request = Request(received, version, "test", Connection(listener_name), reply)
        return await answer_of(module.handle(self, request), reply, version)


def versions_of(key):
    spec = API_VERSIONS[key]
    return range(spec.min_version, spec.max_version + 1)


def scenario_with_broker(tmp_path, work, settings=None):
    async def scenario(cluster):
        await work(FakeBroker(await cluster.start(settings)))

    run(tmp_path, scenario)
