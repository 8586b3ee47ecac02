"""The answer that one request still lacks, as seen by those who will have it.

A request has one `Reply`. Whoever has the answer completes the reply: the handler of the request, a partition
whose high watermark rises, a group whose members have all joined. Answers may come in any order: the
connection sends them in the order of its requests. All of this happens on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Reply(Protocol):
    """Only the first answer counts. A reply whose connection is gone takes every answer and drops it."""

    on_drop: Callable[[], None] | None
    """Called once if the connection goes away before there is an answer, so that nobody works or waits for it
    any longer. Whoever waits sets it; the answer clears it."""

    @property
    def is_open(self) -> bool:
        """True until the reply has its answer or its connection is gone."""

    def complete(self, response: Any) -> None:
        """Answer with a response message, or with steps that return one (apis/steps.py)."""

    def complete_encoded(self, chunks: list[Any]) -> None:
        """Answer with a whole response frame: pieces of bytes and ranges of segment files."""

    def fail(self, error: BaseException) -> None:
        """There is no answer: the connection is closed after the answers to its earlier requests."""

    def reserve_files(self, wanted: int) -> int:
        """How many of `wanted` segment files the answer may hold open until it is sent.

        They are kept for this answer, which is made in a thread or in steps, until it is there. A second
        call asks for more only beyond what the first got.
        """
