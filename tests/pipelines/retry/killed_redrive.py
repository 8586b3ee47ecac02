"""Redrives a pipeline through its retry topic in a process that is killed, with SIGKILL, while it sends.

    python -m tests.pipelines.retry.killed_redrive FOLDER PIPELINE NUMBER DELAY

The process is killed DELAY seconds after it begins to send its request of this number: the request may be on
its way then, written, or answered.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys

from klamm.pipelines.project import Project
from klamm.pipelines.retry import redriving
from klamm.pipelines.retry.redriving import redrive_through_topic
from klamm.pipelines.retry.writer import OrderedWriter

CHUNK_RECORDS = 2


def main(folder: str, pipeline: str, number: str, delay_s: str) -> None:
    original = OrderedWriter._produce
    requests = itertools.count()

    async def produce(self: OrderedWriter, batch: bytes) -> None:
        if next(requests) == int(number):
            kill = (os.kill, os.getpid(), signal.SIGKILL)
            asyncio.get_running_loop().call_later(float(delay_s), *kill)
        await original(self, batch)

    OrderedWriter._produce = produce  # type: ignore[method-assign]
    redriving.CHUNK_RECORDS = CHUNK_RECORDS
    print(redrive_through_topic(Project.load(folder), pipeline).total)


if __name__ == "__main__":
    main(*sys.argv[1:])
