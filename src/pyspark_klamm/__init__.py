"""Klamm's data source for Spark: `.format("klamm")` reads and writes topics of Klamm and of any other Kafka.

Spark imports every module named `pyspark_*` and registers its `DefaultSource`, so this file must stay cheap:
clients, Arrow and numba are loaded by the methods that need them.
"""

from __future__ import annotations

from pyspark_klamm.session import session
from pyspark_klamm.source import KlammSource as DefaultSource

__all__ = ["DefaultSource", "session"]
