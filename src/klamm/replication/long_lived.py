"""Keeps the garbage collector from looking at partitions again and again.

A full collection looks at all objects of the process, on the event loop: those of ten thousand partitions
hold up every connection for a tenth of a second. What is there at the start is frozen (`node/broker.py`).
What comes later is frozen while it is made, so that a full collection finds little at any time.

Frozen objects are freed as others are when nothing refers to them any longer, but not if they refer to each
other in a circle. Partitions do not, and connections break their circles when they are closed. What else is
alive in that moment and ends in a circle is lost: a few objects for each `PARTITIONS_BETWEEN_FREEZES`.
"""

from __future__ import annotations

import gc

PARTITIONS_BETWEEN_FREEZES = 500
"""They have some 14,000 objects, which a collection looks at in a few milliseconds."""


class LongLived:
    def __init__(self) -> None:
        self._unfrozen = 0

    def note_partition(self) -> None:
        """A partition was made."""
        self._unfrozen += 1
        if self._unfrozen >= PARTITIONS_BETWEEN_FREEZES:
            self._unfrozen = 0
            gc.freeze()
