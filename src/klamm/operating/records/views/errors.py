"""Why bytes cannot be shown as what they were taken for."""

from __future__ import annotations


class Undecodable(Exception):
    """The bytes are not what they were taken for. The text says why, and where."""
