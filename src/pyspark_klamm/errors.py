"""What the data source raises: an option that is wrong, and records that are gone.

Spark carries the text of these from its worker processes to the user, and little else, so the text has to
say what happened, to what, and what to do.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

logger = logging.getLogger("pyspark_klamm")


class OptionError(ValueError):
    """An option of the data source that is missing, wrong, or at odds with another."""


class TopicMissing(Exception):
    """A topic or partition that a query names is not there."""


class DataLoss(Exception):
    """Records that a query was to read are gone, and failOnDataLoss is true."""


_ADVICE = (
    "Records may have been deleted by retention, or the topic was deleted or made anew. "
    "Set the option failOnDataLoss to false to go on without them"
)


def report_losses(losses: Sequence[str], fails: bool) -> None:
    """Raise, or log where the user has said that a query shall go on."""
    text = "; ".join(losses)
    if fails:
        raise DataLoss(f"{text}. {_ADVICE}")
    logger.warning("%s; going on without", text)
