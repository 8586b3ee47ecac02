"""Partitions as handlers see them, and who waits for them."""
