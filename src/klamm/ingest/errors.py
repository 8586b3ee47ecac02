"""The error of ingest: its text says what happened, to what, and what to do."""

from __future__ import annotations


class IngestError(Exception):
    """Ends a tail or a replay. `advice` is part of the text."""

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(f"{message}. {advice}" if advice else message)
        self.message = message
        self.advice = advice
