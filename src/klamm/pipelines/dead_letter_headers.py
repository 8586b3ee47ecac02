"""The headers of dead-letter records that say why and by whom they were refused; `dead_letters.py` says more.

A core that imports no pyspark: the console shows the reasons without it.
"""

from __future__ import annotations

RULE, ERROR, PIPELINE = "klamm.rule", "klamm.error", "klamm.pipeline"
SOURCE = "klamm.source"
"""The function whose expectation was broken."""
