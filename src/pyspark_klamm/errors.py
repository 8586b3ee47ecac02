"""What the data source raises: an option that is wrong, and records that are gone.

Spark carries the text of these from its worker processes to the user, and little else, so the text has to
say what happened, to what, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable


class OptionError(ValueError):
    """An option of the data source that is missing, wrong, or at odds with another."""


class TopicMissing(Exception):
    """A topic or partition that a query names is not there."""


class DataLoss(Exception):
    """Records that a query was to read are gone, and failOnDataLoss is true."""


LOSS_ADVICE = (
    "Records may have been deleted by retention, or the topic was deleted or made anew. "
    "Set the option failOnDataLoss to false to go on without them"
)


def data_loss(losses: Iterable[str]) -> DataLoss:
    return DataLoss(f"{'; '.join(losses)}. {LOSS_ADVICE}")
