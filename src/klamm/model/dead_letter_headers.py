"""The headers of dead-letter records that say why a record was refused, and where it came from.

`pipelines/dead_letters.py` writes them and says more. They are here because the console, the pipelines and
the Spark data source read them, and the console must not need pyspark.
"""

from __future__ import annotations

RULE, ERROR, PIPELINE = "klamm.rule", "klamm.error", "klamm.pipeline"
SOURCE = "klamm.source"
"""The function whose expectation was broken."""

TOPIC, PARTITION = "klamm.topic", "klamm.partition"
OFFSET, TIMESTAMP = "klamm.offset", "klamm.timestamp"
"""The coordinates of the original record, the time in milliseconds."""
