"""Logging of the client: every line starts with the client's id.

A program may run many clients, and the broker's log names them by the same ids.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    ClientLogger = logging.LoggerAdapter[logging.Logger]
else:
    ClientLogger = logging.LoggerAdapter


class _WithClientId(ClientLogger):
    """Puts the client's id before every message."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        assert self.extra is not None
        return f"[{self.extra['client_id']}] {msg}", kwargs


def client_logger(part: str, client_id: str) -> ClientLogger:
    """The logger `klamm.client.<part>` for one client."""
    return _WithClientId(
        logging.getLogger(f"klamm.client.{part}"), {"client_id": client_id.replace("%", "%%")}
    )
