"""Logging of the commands: to stderr, at the level KLAMM_LOG_LEVEL."""

from __future__ import annotations

import logging
import os
import sys

LOG_LEVEL_VARIABLE = "KLAMM_LOG_LEVEL"


def set_up_logging() -> None:
    logging.basicConfig(
        level=os.environ.get(LOG_LEVEL_VARIABLE, "INFO").upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )
