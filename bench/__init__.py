"""Measures Klamm beside Apache Kafka and beside the bare machine, in one run: `python -m bench`."""
