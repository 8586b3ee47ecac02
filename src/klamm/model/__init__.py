"""Ids, error codes, the choice of the event loop."""
