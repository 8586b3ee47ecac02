"""Plans for the proxy: which answers are hurt, and how. Each is decided by a seed, not by time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.client.faults.proxy import CUT, PASS, SWALLOW, Answer, Plan, Verdict, cut_in_the_middle

UNHURT_ANSWERS = 3
"""Of each connection: one that is always cut in its first answer shows no more than a closed port."""

Harm = Callable[[Answer, Random], Verdict]


def now_and_then(seed: int, one_in: int, harm: Harm) -> Plan:
    """Hurt about one answer in `one_in`, chosen by the seed, the connection's number and the answer's."""

    def plan(answer: Answer) -> Verdict:
        chance = Random(f"{seed}:{answer.connection}:{answer.number}")
        if answer.number < UNHURT_ANSWERS or chance.randrange(one_in):
            return PASS
        return harm(answer, chance)

    return plan


def cut(answer: Answer, chance: Random) -> Verdict:
    """The request was served, and its answer is lost with the connection."""
    return CUT


def cut_in_two(answer: Answer, chance: Random) -> Verdict:
    return cut_in_the_middle(answer)


def swallow(answer: Answer, chance: Random) -> Verdict:
    """The connection lives on, and this one answer never comes."""
    return SWALLOW


def delay(answer: Answer, chance: Random) -> Verdict:
    return Verdict(delay_s=chance.uniform(0.01, 0.3))


def anything(answer: Answer, chance: Random) -> Verdict:
    return chance.choice((cut, cut_in_two, swallow, delay))(answer, chance)
