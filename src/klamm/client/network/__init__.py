"""Connections to brokers: opening them, pooling them, and knowing who leads what."""
