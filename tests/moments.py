"""Times of records that tests send to brokers."""

from __future__ import annotations

import time

MIDNIGHT_MS = int(time.time()) // 86_400 * 86_400 * 1000
"""The last midnight, in all processes of a test run. Brokers delete records that are older than a week, every
five minutes: a test that sends records of years ago finds nothing if it reads at the wrong moment."""
