"""The kinds of faults, by name: each hurts a stand for one round, and leaves it whole again."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

from tests.client.faults.plans import Harm, anything, cut, cut_in_two, delay, now_and_then, swallow
from tests.client.faults.proxy import pass_all
from tests.client.faults.stands import InProcessStand, ProcessStand, Stand

Round = Callable[[Stand, Random], None]

ONE_ANSWER_IN = 12


def kill(stand: Stand, chance: Random) -> None:
    """kill -9, and a new broker on the same files."""
    assert isinstance(stand, ProcessStand)
    stand.restart()


def stop_the_process(stand: Stand, chance: Random) -> None:
    """SIGSTOP, for less and for more than the clients' patience."""
    assert isinstance(stand, ProcessStand)
    with stand.process.paused():
        time.sleep(chance.uniform(0.2, 1.5))


def restart(stand: Stand, chance: Random) -> None:
    """Stopped in good order, as an operator does it."""
    assert isinstance(stand, InProcessStand)
    stand.restart()


def cut_connections(stand: Stand, chance: Random) -> None:
    for _ in range(5):
        time.sleep(chance.uniform(0.0, 0.1))
        stand.proxy.cut_connections()


def refuse(stand: Stand, chance: Random) -> None:
    """As behind a firewall that has changed its mind."""
    with stand.proxy.refusing():
        time.sleep(chance.uniform(0.05, 0.5))


def hold_the_line(stand: Stand, chance: Random) -> None:
    """Connections stay open, and nothing passes, for less and for more than the clients' patience."""
    with stand.proxy.paused():
        time.sleep(chance.uniform(0.2, 1.5))


def answers(harm: Harm) -> Round:
    """Hurt answers now and then for a while."""

    def hurt(stand: Stand, chance: Random) -> None:
        stand.proxy.plan = now_and_then(chance.randrange(1 << 30), ONE_ANSWER_IN, harm)
        before = stand.proxy.harmed_count
        deadline = time.monotonic() + 5
        while stand.proxy.harmed_count - before < 5 and time.monotonic() < deadline:
            time.sleep(0.02)
        stand.proxy.plan = pass_all

    return hurt


PROCESS_FAULTS: dict[str, Round] = {"kill": kill, "stop": stop_the_process}
"""What needs a broker in a process of its own."""

FAULTS: dict[str, Round] = {
    "restart": restart,
    "cut-connections": cut_connections,
    "refuse": refuse,
    "hold-the-line": hold_the_line,
    "cut-answers": answers(cut),
    "halve-answers": answers(cut_in_two),
    "swallow-answers": answers(swallow),
    "delay-answers": answers(delay),
    "hurt-answers": answers(anything),
}
