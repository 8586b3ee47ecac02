"""The supervisor of `klamm up --brokers`, with programs in the place of brokers."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from tests.waiting import until

from klamm.cli.supervisor import BrokerPlan, CannotRun, RunningBroker, Supervisor

TALKS = """
import pathlib, signal, sys
print("broker 1 listens on here:1", flush=True)
for _ in range(20_000):
    print("a line of a broker that prints more than a pipe holds")
print("x" * 1_000_000)
print("the last line", flush=True)
pathlib.Path(sys.argv[1]).touch()
signal.pause()
"""
SERVES_AND_ENDS = """
print("broker listens on here:1", flush=True)
raise SystemExit(3)
"""
ENDS = "raise SystemExit(3)"
WAITS = "import signal; signal.pause()"


def plan(broker_id: int, program: str, *arguments: str) -> BrokerPlan:
    return BrokerPlan(broker_id, (sys.executable, "-c", program, *arguments), "here:0")


def test_a_broker_that_prints_much_is_never_blocked(tmp_path: Path) -> None:
    said: list[str] = []
    ready: list[RunningBroker] = []
    printed = tmp_path / "printed"

    async def run() -> None:
        supervisor = Supervisor(
            [plan(1, TALKS, str(printed))], restarts=False, say=said.append, ready=ready.extend
        )
        running = asyncio.create_task(supervisor.run())
        await until(printed.exists, "all is printed")
        supervisor.stop()
        await running

    asyncio.run(run())
    assert sum("more than a pipe holds" in line for line in said) == 20_000
    assert [(one.id, one.address) for one in ready] == [(1, "here:1")] and "the last line" in said


def test_one_that_ends_at_once_ends_all() -> None:
    async def run() -> None:
        supervisor = Supervisor([plan(1, WAITS), plan(2, ENDS)], restarts=True, say=print, ready=print)
        with pytest.raises(CannotRun, match="broker 2 ended with status 3 before it served"):
            await supervisor.run()

    asyncio.run(run())


def test_a_stop_before_anyone_serves_ends_all() -> None:
    async def run() -> None:
        supervisor = Supervisor([plan(1, WAITS), plan(2, WAITS)], restarts=True, say=print, ready=print)
        running = asyncio.create_task(supervisor.run())
        await until(lambda: len(supervisor._processes) == 2, "both are started")
        supervisor.stop()
        await running
        assert all(broker.process.returncode is not None for broker in supervisor._processes.values())

    asyncio.run(run())


def test_nobody_is_left_and_nobody_is_started_again() -> None:
    said: list[str] = []

    async def run() -> None:
        plans = [plan(broker_id, SERVES_AND_ENDS) for broker_id in (1, 2)]
        supervisor = Supervisor(plans, restarts=False, say=said.append, ready=print)
        with pytest.raises(CannotRun, match="no broker is left"):
            await supervisor.run()

    asyncio.run(run())
    ends = [f"klamm: broker {broker_id} ended with status 3; it is not started again" for broker_id in (1, 2)]
    assert sorted(said) == ends
