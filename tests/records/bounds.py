"""The kernels once more, with a check of each index: one outside of its array is an IndexError."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.peers.kafka_jars import CACHE

LONGEST_RUN_S = 150.0


def run_with_checks(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with kernels that check their indexes. What is compiled for it is kept for the next run."""
    checks = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(CACHE / "kernels-with-checks")}
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **checks},
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=False,
    )
