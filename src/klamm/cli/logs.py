"""Logging of the commands: to stderr, at the level KLAMM_LOG_LEVEL, as text on a terminal and else as JSON.

Every process of Klamm writes the same lines of JSON: time, level, logger, message, process_id, and if there
is one the broker and the exception. They are for programs that collect logs; KLAMM_LOG_FORMAT chooses.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from enum import StrEnum

LOG_LEVEL_VARIABLE = "KLAMM_LOG_LEVEL"
LOG_FORMAT_VARIABLE = "KLAMM_LOG_FORMAT"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def set_up_logging(*, broker_id: int | None = None) -> None:
    """`broker_id` is part of every line: the brokers of a cluster often log to one place."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(broker_id))
    logging.basicConfig(level=os.environ.get(LOG_LEVEL_VARIABLE, "INFO").upper(), handlers=[handler])


def _formatter(broker_id: int | None) -> logging.Formatter:
    if _chosen_format() is LogFormat.JSON:
        return JsonLines(broker_id)
    of_broker = "" if broker_id is None else f"broker {broker_id} "
    return logging.Formatter(f"%(asctime)s %(levelname)-7s {of_broker}%(name)s: %(message)s")


def _chosen_format() -> LogFormat:
    chosen = os.environ.get(LOG_FORMAT_VARIABLE)
    if not chosen:
        return LogFormat.TEXT if sys.stderr.isatty() else LogFormat.JSON
    try:
        return LogFormat(chosen.lower())
    except ValueError:
        expected = " or ".join(LogFormat)
        raise SystemExit(
            f"klamm: {LOG_FORMAT_VARIABLE}={chosen!r} is not valid: expected {expected}"
        ) from None


class JsonLines(logging.Formatter):
    """One line for each record, whatever its message contains."""

    def __init__(self, broker_id: int | None = None) -> None:
        # Imported here to keep `klamm --help` quick.
        from json import dumps

        super().__init__()
        self._broker_id = broker_id
        self._dumps = dumps

    def format(self, record: logging.LogRecord) -> str:
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{second}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process_id": record.process,
        }
        if self._broker_id is not None:
            line["broker"] = self._broker_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return self._dumps(line)
