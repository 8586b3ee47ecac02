"""Redrives through retry topics, for pipelines whose sinks cannot take dead-letter records by themselves."""
