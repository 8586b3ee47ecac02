"""Which requests of a controller a broker may still obey.

A controller that has been replaced may not know of it yet, and a request may come late: after the broker was
restarted.
"""

from __future__ import annotations

from klamm.model.errors import ErrorCode, KafkaError


def check_controller_epoch(epoch: int, latest_epoch: int) -> None:
    """STALE_CONTROLLER_EPOCH if the sender has been replaced. `latest_epoch` is the latest that was seen."""
    if epoch < latest_epoch:
        raise KafkaError(
            ErrorCode.STALE_CONTROLLER_EPOCH,
            f"a controller of epoch {epoch} was replaced by one of epoch {latest_epoch}",
        )


def check_own_broker_epoch(epoch: int, own_epoch: int) -> None:
    """STALE_BROKER_EPOCH if the request was meant for this broker before its restart.

    A later epoch than our own is right: the controller may see our registration before we know of it.
    """
    if epoch < own_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"the request is for the broker epoch {epoch}; this broker has registered again as {own_epoch}",
        )


def check_leader_epoch(epoch: int, own_epoch: int) -> None:
    """FENCED_LEADER_EPOCH if a request about a partition is older than what this broker was told of it."""
    if epoch < own_epoch:
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {epoch} is over; this broker knows {own_epoch}"
        )
