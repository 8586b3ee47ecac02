"""Sending records: which partition, which batch, in which order, and what became of it."""
