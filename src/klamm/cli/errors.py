"""What a command says when it cannot do what it was asked."""

from __future__ import annotations


class CommandError(Exception):
    """A command cannot be done. The text is one line for the user; `advice` says what to do."""

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(f"{message}. {advice}" if advice else message)
