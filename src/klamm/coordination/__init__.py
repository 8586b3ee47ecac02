"""The store interface and its SQLite engine."""
