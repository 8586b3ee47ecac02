"""Connections are kept for as long as a process lives, and end with it."""

from __future__ import annotations

import os
import subprocess
import sys

import klamm
from pyspark_klamm import connections
from pyspark_klamm.connections import MOST_CONNECTIONS, connection_for
from tests.client.topics import make_topic

READER = """
import contextlib, os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
with contextlib.suppress(PermissionError):
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
from tests.spark.driving import read
print(len(read(sys.argv[1], subscribe=sys.argv[2])))
"""


def test_a_process_that_has_read_ends_well(klamm_bootstrap: str) -> None:
    """Whose threads get no turn while another is at work, as on one core: that used to end in a crash."""
    topic = make_topic(klamm_bootstrap)
    with klamm.Producer(klamm_bootstrap) as producer:
        producer.send(topic, b"v").result()
    done = subprocess.run(
        [sys.executable, "-c", READER, klamm_bootstrap, topic],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=os.getcwd(),
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_the_same_settings_share_a_connection_and_few_are_kept() -> None:
    settings = {"bootstrap.servers": "localhost:1"}
    first = connection_for(settings)
    assert connection_for(dict(settings)) is first
    for number in range(MOST_CONNECTIONS):
        connection_for({**settings, "client.id": f"client-{number}"})
    assert len(connections._connections) == MOST_CONNECTIONS
    assert first.thread.loop.is_closed()
    assert connection_for(settings) is not first


def test_a_forked_child_makes_its_own() -> None:
    settings = {"bootstrap.servers": "localhost:1", "client.id": "forking"}
    mine = connection_for(settings)
    child = os.fork()
    if child == 0:
        other = connection_for(settings)
        os._exit(0 if other is not mine and other.thread.loop is not mine.thread.loop else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
