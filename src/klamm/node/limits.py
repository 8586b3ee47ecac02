"""What the operating system allows the process."""

from __future__ import annotations

import logging
import resource

from klamm.storage.segments.open_files import OPEN_FILES_LIMIT

logger = logging.getLogger("klamm.node")

COMFORTABLE_DESCRIPTORS = 16_384
"""Enough for ten thousand clients and the segment files beside them."""


def open_files_limit() -> int:
    """How many segment files may be open at a time: a quarter, so that clients and the rest find room."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES_LIMIT if hard == resource.RLIM_INFINITY else min(OPEN_FILES_LIMIT, hard // 4)


def raise_descriptor_limit() -> None:
    """Take as many file descriptors as we may: each client and each open segment needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < COMFORTABLE_DESCRIPTORS:
        logger.warning("only %d file descriptors are allowed: connections may run out (ulimit -Hn)", hard)
