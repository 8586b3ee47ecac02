"""Filling the copy of a log that is moved to another log directory; these block, and run in a thread.

The copy takes whole batches as they are, as a follower's log does. The log goes on meanwhile: it may grow,
lose its oldest records to retention, or be cut as a follower. The copy is brought in line with it before each
step.
"""

from __future__ import annotations

import errno

from klamm.model.errors import ErrorCode, KafkaError
from klamm.storage.log import Log

STEP_BYTES = 1 << 20
"""Copied in one step: enough for a disk, and soon over when a move is called off."""


def align(log: Log, copy: Log, now_ms: int) -> bool:
    """Take out of `copy` what `log` has no longer; False if there was nothing. True asks the caller to write
    the recovery point to its checkpoint before anything is appended to the copy."""
    agreed = _agreed_end(log, copy)
    has_gone_back = log.log_start_offset < copy.log_start_offset  # a crash came before it was checkpointed
    if agreed < log.log_start_offset or has_gone_back:
        copy.start_at(log.log_start_offset, now_ms)
        return True
    copy.delete_records_before(min(log.log_start_offset, copy.log_end_offset))
    if agreed < copy.log_end_offset:
        copy.truncate_to(agreed, now_ms)
        return True
    return False


def _agreed_end(log: Log, copy: Log) -> int:
    """Up to which offset both have the same records: to the end of the last epoch that both know. -1 if they
    know none in common."""
    if not copy.epochs.entries:
        return min(copy.log_end_offset, log.log_end_offset)
    for epoch, _ in reversed(copy.epochs.entries):
        found, end_offset = log.epoch_end_offset(epoch)
        if found == epoch:
            return min(end_offset, copy.epoch_end_offset(epoch)[1], copy.log_end_offset, log.log_end_offset)
    return -1


def copy_some(log: Log, copy: Log, now_ms: int) -> int:
    """Append the next batches of `log` to `copy`; returns how many bytes. 0 if there are none now, or the log
    was cut meanwhile."""
    copy.config = log.config
    try:
        batches = log.read(
            copy.log_end_offset, STEP_BYTES, log.log_end_offset, must_return_one=True, may_block=True
        )
        if batches is None:
            return 0
        copy.append_replicated(batches.read(), now_ms)
    except KafkaError as error:
        if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
            raise
        return 0
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        return 0
    if copy.has_unflushed_segment:
        copy.flush()
    return len(batches)
