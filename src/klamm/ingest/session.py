"""A tail with its positions and its producer, opened and closed together. Needs klamm[arrow].

with TailSession(TailOptions(["logs/*.log"], once=True), "logs", "localhost:9092", state=folder) as tail:
    tail.run(threading.Event())
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from klamm.config.client_config import Bootstrap, ConfigGiven
from klamm.ingest.errors import IngestError
from klamm.ingest.lines import BadPattern
from klamm.ingest.positions import Positions
from klamm.ingest.progress import Progress
from klamm.ingest.reading import MOST_MAX_BYTES
from klamm.ingest.sending import TopicWriter
from klamm.ingest.tail import Tail, TailOptions


class TailSession:
    """Call `run` in one thread; the other methods may be called from any."""

    def __init__(
        self,
        options: TailOptions,
        topic: str,
        bootstrap: Bootstrap = None,
        *,
        state: Path,
        config: ConfigGiven = None,
        producer_options: Mapping[str, object] | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Raises IngestError if an option is not valid, the positions cannot be used, or the topic does not
        exist."""
        _check(options)
        self._positions = Positions(state)
        try:
            noted = self._positions.target()
            if noted is not None and noted.topic != topic:
                raise IngestError(
                    f"{state} has the positions of a tail to {noted.topic}, not to {topic}",
                    advice="Give each topic a --state of its own",
                )
            self._writer = TopicWriter(topic, bootstrap, config=config, options=producer_options)
            self._tail = Tail(options, self._writer, self._positions, report=report)
        except BaseException:
            self._positions.close()
            raise

    @property
    def progress(self) -> Progress:
        return self._tail.progress

    @property
    def unreadable(self) -> Sequence[str]:
        """Files that match the patterns and cannot be read."""
        return self._tail.unreadable

    def run(self, stop: threading.Event) -> Progress:
        """Follow files until `stop` is set, or with `once` to their end; then wait for acknowledgements.

        Raises IngestError if it cannot go on. Nothing is lost then: blocks in flight are noted.
        """
        return self._tail.run(stop)

    def abandon(self) -> None:
        """Stop waiting for acknowledgements; `run` ends with an IngestError."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._writer.close()
        finally:
            self._positions.close()


def _check(options: TailOptions) -> None:
    if not options.patterns:
        raise IngestError("there is nothing to follow", advice="Give a pattern, such as 'logs/*.log'")
    if not 1 <= options.rules.max_bytes <= MOST_MAX_BYTES:
        raise IngestError(f"--max-line-bytes must be from 1 to {MOST_MAX_BYTES}")
    try:
        options.rules.check()
    except BadPattern as error:
        raise IngestError(f"--multiline-start {error}") from None
