"""Logging of the commands: to stderr, at the level KLAMM_LOG_LEVEL."""

from __future__ import annotations

import logging
import os
import sys

LOG_LEVEL_VARIABLE = "KLAMM_LOG_LEVEL"


def set_up_logging(*, broker_id: int | None = None) -> None:
    """`broker_id` is part of every line: the brokers of a cluster often log to one place."""
    of_broker = "" if broker_id is None else f"broker {broker_id} "
    logging.basicConfig(
        level=os.environ.get(LOG_LEVEL_VARIABLE, "INFO").upper(),
        format=f"%(asctime)s %(levelname)-7s {of_broker}%(name)s: %(message)s",
        stream=sys.stderr,
    )
