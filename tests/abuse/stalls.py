"""How long the event loop of a watched broker was away."""

from __future__ import annotations

from pathlib import Path

LONGEST_STALL_MS = 100.0
"""Of CPU time of the loop's thread, between two looks of the loop."""


class Stalls:
    """What the watched broker wrote down."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._seen = 0

    def longest_ms(self) -> float:
        """The longest stall since the last call."""
        lines = self.file.read_text().splitlines()
        new, self._seen = lines[self._seen :], len(lines)
        return max(map(float, new), default=0.0)
