"""`make demo` starts a broker with live topics and says how to reach them."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

from tests.cli.commands import Command
from tests.clients.confluent import ConfluentClient
from tests.clients.contract import wait_until


def test_the_demo_is_alive_until_ctrl_c(tmp_path: Path) -> None:
    with Command([sys.executable, "-m", "klamm.testing.demo"], tmp_path) as command:
        address = re.search(r"127\.0\.0\.1:\d+", command.wait_for_line("127.0.0.1:"))
        assert address is not None
        client = ConfluentClient(address[0])
        topics = wait_until(lambda: client.list_topics() - {"__consumer_offsets"}, "demo topics")
        assert len(topics) >= 3

        def ends() -> dict[tuple[str, int], int]:
            return {
                (topic, partition): client.watermarks(topic, partition)[1]
                for topic in topics
                for partition in range(client.partition_count(topic))
            }

        before = ends()
        wait_until(lambda: sum(ends().values()) > sum(before.values()), "records keep coming")
        wait_until(client.list_groups, "a group that lags")
        snippet = "\n".join(command.printed)
        assert address[0] in snippet and "bootstrap" in snippet
        assert command.stop(signal.SIGINT) == 0, command
    assert not any("Traceback" in line for line in command.complained), command
