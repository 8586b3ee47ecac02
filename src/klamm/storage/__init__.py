"""Segments, indexes, logs, recovery, retention, compaction."""
