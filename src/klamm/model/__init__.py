"""Ids, error codes, limits."""
