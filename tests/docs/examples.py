"""The examples in the documents, run as their readers would run them.

Every block fenced as ```python is run. The blocks between two headings share their names and run in order,
on a broker of their own that takes the place of `localhost:9092`; `await` may stand outside of a function.
What a reader is not shown again and again is there already: `import asyncio`, `import klamm`, the topic
`orders` with a few records, and `handle`, the work of the reader's own. Its third call ends the example, as
loops over a topic have no end.

```python compile   for what needs a server that is not there: only compiled
```python test      a file of tests: run by pytest, in a directory of its own

`python -m tests.docs.examples PAGE HEADING HOST:PORT` runs one section, on a broker that is there: for
examples that are to have a process of their own.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import klamm
import klamm.aio

REPOSITORY = Path(__file__).resolve().parents[2]
ADDRESS = "localhost:9092"
TOPIC = "orders"
PARTITION_COUNT = 3
SEEDED_RECORDS = 12
HANDLED_RECORDS = 3

_HEADING = re.compile(r"^#+ (.*)$")
_OPENING = re.compile(r"^```python(?: (\w+))?$")


class ExampleEnded(BaseException):
    """Ends a loop that has no end of its own; no example catches it."""


@dataclass
class Block:
    """One fenced block: what it is (run, compile, test), and its code at its line of the page."""

    manner: str
    code: str
    line: int


@dataclass
class Section:
    """What stands between two headings."""

    page: str
    heading: str
    blocks: list[Block] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.page}: {self.heading}"


def sections(page: str) -> list[Section]:
    """The sections of a page (its path from the repository's root) that have examples."""
    found = [Section(page, "beginning")]
    lines = enumerate((REPOSITORY / page).read_text().splitlines(), 1)
    for number, line in lines:
        if opening := _OPENING.match(line):
            code = "\n".join(_until_fence(lines))
            found[-1].blocks.append(Block(opening[1] or "run", code + "\n", number + 1))
        elif line.startswith("```"):
            list(_until_fence(lines))
        elif heading := _HEADING.match(line):
            found.append(Section(page, heading[1]))
    return [section for section in found if section.blocks]


def _until_fence(lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    for _, line in lines:
        if line == "```":
            return
        yield line


def run_section(section: Section, bootstrap: str, **more: Any) -> None:
    """Run its blocks in order, with `more` names; what is wrong is raised, with its line in the page."""
    seed(bootstrap)
    handled: list[Any] = []

    def handle(item: Any) -> None:
        handled.append(item)
        if len(handled) % HANDLED_RECORDS == 0:
            raise ExampleEnded

    names: dict[str, Any] = {"__name__": "example", "asyncio": asyncio, "klamm": klamm, "handle": handle}
    names |= more
    with asyncio.Runner() as runner:
        for block in section.blocks:
            code = compiled(section, block, bootstrap)
            if block.manner == "run":
                _run(code, names, runner)


def compiled(section: Section, block: Block, bootstrap: str) -> CodeType:
    text = "\n" * (block.line - 1) + block.code.replace(ADDRESS, bootstrap)
    path = str(REPOSITORY / section.page)
    return compile(text, path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def _run(code: CodeType, names: dict[str, Any], runner: asyncio.Runner) -> None:
    try:
        if code.co_flags & inspect.CO_COROUTINE:

            async def awaited() -> None:
                await eval(code, names)

            runner.run(awaited())
        else:
            exec(code, names)
    except* ExampleEnded:
        pass


def seed(bootstrap: str) -> None:
    with klamm.Admin(bootstrap) as admin:
        admin.create_topics([klamm.NewTopic(TOPIC, partitions=PARTITION_COUNT)])
    with klamm.Producer(bootstrap) as producer:
        for number in range(SEEDED_RECORDS):
            producer.send(TOPIC, b'{"order": %d}' % number, key=b"%d" % number)


def main(page: str, heading: str, bootstrap: str) -> None:
    (section,) = [section for section in sections(page) if section.heading == heading]
    run_section(section, bootstrap)


if __name__ == "__main__":
    main(*sys.argv[1:])
