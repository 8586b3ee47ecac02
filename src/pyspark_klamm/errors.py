"""The errors of the data source.

Of an error in a worker process Spark shows users little more than its text, so the text has to say what
happened, to what, and what to do.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

logger = logging.getLogger("pyspark_klamm")


class OptionError(ValueError):
    """An option of the data source is missing, not valid, or in conflict with another."""


class TopicMissing(Exception):
    """A topic or partition that a query names does not exist."""


class DataLoss(Exception):
    """Records that a query should read no longer exist, and failOnDataLoss is true."""


_ADVICE = (
    "Records may have been deleted by retention, or the topic was deleted or created again. "
    "Set the option failOnDataLoss to false to continue without them"
)


def report_losses(losses: Sequence[str], fails: bool) -> None:
    """Raise DataLoss if `fails`, else log the losses."""
    text = "; ".join(losses)
    if fails:
        raise DataLoss(f"{text}. {_ADVICE}")
    logger.warning("%s; continuing without them", text)
