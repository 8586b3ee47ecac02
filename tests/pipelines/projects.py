"""Projects for tests, written into a folder from a few lines."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from klamm.pipelines.project import Project

IMPORTS = (
    "from klamm.pipelines import delta, expect, iceberg, jdbc, parquet, pipeline, source, topic, transform; "
    "from klamm.pipelines import table as to_table\n"
)
"""On one line, so that the lines of tests have their numbers plus one. Pipelines in tests may be called
table."""

COUNT = '''
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor


class Count(StatefulProcessor):
    """Counts the orders of each customer, over batches."""

    def init(self, handle):
        self._seen = handle.getValueState("seen", "n BIGINT")

    def handleInputRows(self, key, rows, timerValues):
        known = self._seen.get()
        count = (known[0] if known else 0) + sum(1 for _ in rows)
        self._seen.update((count,))
        yield Row(customer=key[0], n=count)

    def close(self):
        pass


'''
"""For transformWithState, at the beginning of a project's file."""


def make_project(
    root: Path, files: dict[str, str] | str = "", *, toml: str = "", **overrides: str
) -> Project:
    """A project called `shop`. `files` by path below its pipelines, or the text of `orders.py`.

    The decorators are imported for the files on their first line; `toml` replaces the project's file.
    """
    (root / "pipelines").mkdir(parents=True, exist_ok=True)
    (root / "klamm.toml").write_text(dedent(toml) or '[project]\nname = "shop"\n')
    texts = {"orders.py": files} if isinstance(files, str) else files
    for name, text in texts.items():
        file = root / "pipelines" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(IMPORTS + dedent(text))
    return Project.load(root, **overrides)
