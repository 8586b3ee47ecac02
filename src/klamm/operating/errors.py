"""The error of what can be asked of a cluster and cannot be done, besides the errors of the client."""

from __future__ import annotations


class CannotDo(Exception):
    """Something cannot be done as it was asked. The text is one line for the user; `advice` says what to
    do."""

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(f"{message}. {advice}" if advice else message)
        self.advice = advice
