"""Tests of ingest: the cores alone, then real files and a real broker."""
