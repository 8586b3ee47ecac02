"""`klamm`, with small bounds on unsent answers: `python bounded_broker.py BYTES FILES SEGMENTS klamm up ...`.

BYTES and FILES bound what the answers that no client takes may hold, SEGMENTS is how many segment files the
broker keeps open beside those.
"""

from __future__ import annotations

import sys

from klamm.cli.main import main
from klamm.node import limits
from klamm.server import listener
from klamm.server.unsent import UnsentAnswers


class Bounded(UnsentAnswers):
    def __init__(self) -> None:
        super().__init__(max_bytes=MAX_BYTES, max_files=MAX_FILES)


if __name__ == "__main__":
    MAX_BYTES, MAX_FILES, limits.OPEN_FILES_LIMIT = map(int, sys.argv[1:4])
    listener.UnsentAnswers = Bounded  # type: ignore[misc]
    sys.argv = sys.argv[4:]
    main()
