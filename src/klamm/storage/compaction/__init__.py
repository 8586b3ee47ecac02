"""Compaction of logs: which log is next, the process that rewrites its segments, and which records stay.

`cleaner` is the broker's task; it asks `schedule` which log is next and hands a plan to `child_process`,
which starts a child process with the program `child_main`. There `rewriting` reads the old segments and
writes new ones, with the rules of `offset_map` (pass one) and `batch_filter` (pass two). Both passes open
batches with `record_scan`.
"""
