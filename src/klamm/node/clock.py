"""The broker's view of time."""

from __future__ import annotations

import time


class SystemClock:
    """Wall-clock time, for timestamps, retention and expiry. Time-outs use the loop's monotonic clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
