"""Runs at the start of every broker of a test that has this folder in PYTHONPATH (`test_mutations.py`).

FAULTS_HELD_BACK names a folder. While it holds the file `held-back-<id>`, the broker appends nothing that it
fetches, and notes each attempt; while it holds `deaf-<id>`, the broker hears nothing from the controller.
FAULTS_BROKEN_RULE names the rule of replication that the broker breaks.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from klamm.cluster.controller import brokers
from klamm.cluster.image import PartitionImage
from klamm.model.errors import ErrorCode, KafkaError
from klamm.replication.isr import Isr, IsrChange, Outcome
from klamm.replication.isr_requests import IsrRequests
from klamm.replication.leader import Leader
from klamm.replication.partition import Partition
from klamm.replication.progress import FollowerProgress
from klamm.storage.log import Log


def hold_back(directory: str, broker_id: str) -> None:
    append_replicated = Log.append_replicated

    def append_unless_held_back(log: Log, *arguments: Any) -> Any:
        if os.path.exists(f"{directory}/held-back-{broker_id}"):
            with open(f"{directory}/attempts-{broker_id}", "a") as attempts:
                attempts.write(".")
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "held back by the test")
        return append_replicated(log, *arguments)

    Log.append_replicated = append_unless_held_back  # type: ignore[method-assign]


def deafen(directory: str, broker_id: str) -> None:
    make, take_over = IsrRequests.__init__, Partition.take_over

    def is_deaf() -> bool:
        return os.path.exists(f"{directory}/deaf-{broker_id}")

    def make_deaf(requests: IsrRequests, node_id: int, broker_epoch: Any, ask: Any) -> None:
        async def ask_unless_deaf(request: Any) -> Any:
            answer = await ask(request)
            if is_deaf():
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the answer is lost")
            return answer

        make(requests, node_id, broker_epoch, ask_unless_deaf)

    def take_over_unless_deaf(partition: Partition, state: PartitionImage) -> None:
        if not is_deaf():
            take_over(partition, state)

    IsrRequests.__init__ = make_deaf  # type: ignore[method-assign]
    Partition.take_over = take_over_unless_deaf  # type: ignore[method-assign]


def let_stale_replicas_join() -> None:
    """Rule 6: a follower joins the ISR with its first fetch, whatever it has."""

    def may_join(leader: Leader, follower: FollowerProgress) -> bool:
        return follower.log_end_offset >= 0

    Leader._may_join = may_join  # type: ignore[method-assign]


def revert_unknown_outcomes() -> None:
    """Rule 8: a change of the ISR without an answer counts as not applied."""
    settle = Isr.settle

    def revert(isr: Isr, change: IsrChange, outcome: Outcome, *state: Any) -> IsrChange | None:
        return settle(isr, change, Outcome.NOT_APPLIED if outcome is Outcome.UNKNOWN else outcome, *state)

    Isr.settle = revert  # type: ignore[method-assign]


def truncate_to_the_high_watermark() -> None:
    """Rule 10: a new follower cuts its log at its high watermark."""
    take_role = Partition._take_role

    def take_role_and_cut(partition: Partition, *arguments: Any) -> None:
        take_role(partition, *arguments)
        if partition.follower is not None:
            partition._context.truncate({partition.topic_partition: partition.high_watermark})

    Partition._take_role = take_role_and_cut  # type: ignore[method-assign]


def trust_unclean_brokers() -> None:
    """Rule 16: a broker that registers without a clean shutdown stays in the ISR."""
    restarted = brokers._restarted

    def all_clean(*arguments: Any) -> Any:
        return restarted(*arguments)._replace(unclean=frozenset())

    brokers._restarted = all_clean


RULES = {
    "6": let_stale_replicas_join,
    "8": revert_unknown_outcomes,
    "10": truncate_to_the_high_watermark,
    "16": trust_unclean_brokers,
}

if "--id" in sys.orig_argv and "FAULTS_HELD_BACK" in os.environ:
    broker = (os.environ["FAULTS_HELD_BACK"], sys.orig_argv[sys.orig_argv.index("--id") + 1])
    hold_back(*broker)
    deafen(*broker)
    if rule := os.environ.get("FAULTS_BROKEN_RULE"):
        RULES[rule]()
