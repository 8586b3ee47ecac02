"""Metrics and health of one broker, over HTTP."""
