"""What the operating system allows the process."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger("klamm.node")

COMFORTABLE_DESCRIPTORS = 16_384
"""Enough for ten thousand clients and the segment files beside them."""


def raise_descriptor_limit() -> None:
    """Take as many file descriptors as we may: each client and each open segment needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < COMFORTABLE_DESCRIPTORS:
        logger.warning("only %d file descriptors are allowed: connections may run out (ulimit -Hn)", hard)
