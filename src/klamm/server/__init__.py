"""Listener, connection, dispatch."""
