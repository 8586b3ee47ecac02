"""Brokers, clients and the command line where uvloop is not installed: they run on asyncio's own loop."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

PATIENCE_SECONDS = 120

WITHOUT_UVLOOP = """\
import sys
sys.modules["uvloop"] = None  # importing it fails, as where it is not installed
"""


def run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_UVLOOP + textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("KLAMM_")},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_a_broker_and_both_clients_run_on_asyncio():
    printed = run(
        """
        import asyncio
        import klamm
        from klamm import aio
        from klamm.testing import Broker

        # Larger than any socket buffer, so that both sides wait until they may write on.
        LARGE = b"x" * 900_000

        async def consume(bootstrap):
            values = []
            read = aio.Consumer(bootstrap, group="a", topics=["numbers"], start="earliest")
            async with read as consumer:
                while len(values) < 2_010:
                    values += [record.value for record in await consumer.poll(timeout=30)]
            return values

        with Broker() as broker:
            assert type(broker._loop).__module__.startswith("asyncio"), type(broker._loop)
            with klamm.Producer(broker.bootstrap) as producer:
                sent = [b"%d" % number for number in range(2_000)] + [LARGE] * 10
                for value in sent:
                    producer.send("numbers", value)
                producer.flush()
            assert sorted(asyncio.run(consume(broker.bootstrap))) == sorted(sent)
            broker.restart()
            again = klamm.Consumer(broker.bootstrap, group="b", topics=["numbers"], start="earliest")
            with again as consumer:
                count = 0
                while count < len(sent):
                    count += len(consumer.poll(timeout=30))
        print("done")
        """
    )
    assert printed == "done\n"


def test_the_command_line_runs_on_asyncio(tmp_path):
    printed = run(
        """
        import os, signal, sys, threading
        from klamm.cli import run_broker
        from klamm.cli.main import main

        started = run_broker.BrokerNode.start

        async def start(node):
            await started(node)
            os.kill(os.getpid(), signal.SIGTERM)

        run_broker.BrokerNode.start = start
        sys.argv = ["klamm", "up", "--no-console", "--port", "0", "--data-dir", sys.argv[1]]
        main()
        """,
        str(tmp_path),
    )
    assert "stopped cleanly" in printed
