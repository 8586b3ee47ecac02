"""Bringing files into topics: `tail` follows logs as they are written, `replay` sends a file of records."""
