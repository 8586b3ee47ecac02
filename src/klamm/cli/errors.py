"""What a command says when it cannot do what it was asked."""

from __future__ import annotations

from klamm.operating.errors import CannotDo


class CommandError(CannotDo):
    """A command cannot be done. The text is one line for the user; `advice` says what to do."""
