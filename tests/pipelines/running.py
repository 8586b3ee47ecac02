"""Projects that run against a real broker: records in, tables read by programs that do not use Klamm."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from deltalake import DeltaTable

import klamm
from klamm.pipelines.locations import table_location
from klamm.pipelines.project import Project
from klamm.pipelines.state import State
from tests.pipelines.projects import make_project
from tests.pipelines.reading import read_by_pandas, read_by_polars

PARTITIONS = 2


class Shop:
    """A project with a topic of its own; `{topic}` in its files is that topic's name."""

    def __init__(
        self,
        root: Path,
        bootstrap: str,
        text: str,
        *,
        spark: str = "",
        run: str = "retries = 0",
        tables: str = "tables",
        storage: Mapping[str, str] | None = None,
        more: str = "",
    ) -> None:
        """`more` are further sections of its klamm.toml."""
        self.name = f"shop-{uuid.uuid4().hex[:8]}"
        self.topic = f"{self.name}.orders"
        self.root = root
        self.bootstrap = bootstrap
        with klamm.Admin(bootstrap) as admin:
            admin.create_topic(self.topic, PARTITIONS)
        self._toml = (
            f'[project]\nname = "{self.name}"\nbootstrap = "{bootstrap}"\ntables = "{tables}"\n'
            f"[spark]\n{spark}\n[run]\n{run}\n[storage]\n"
        )
        self._toml += "".join(f'{name} = "{value}"\n' for name, value in (storage or {}).items())
        self._toml += more
        self.sent = 0
        self.project = self.write(text)

    def write(self, text: str) -> Project:
        """Write the project's file again."""
        self.project = make_project(self.root, text.replace("{topic}", self.topic), toml=self._toml)
        return self.project

    def send(self, count: int, **more: object) -> None:
        """Send records whose numbers continue after the last ones."""
        values = [{"n": number, **more} for number in range(self.sent, self.sent + count)]
        self.send_raw(json.dumps(value).encode() for value in values)
        self.sent += count

    def send_raw(self, values: Iterable[bytes]) -> None:
        with klamm.Producer(self.bootstrap) as producer:
            deliveries = [
                producer.send(self.topic, value, partition=number % PARTITIONS)
                for number, value in enumerate(values)
            ]
            for delivery in deliveries:
                delivery.result()

    def commits(self, pipeline: str) -> Path:
        """Where Spark notes which batches are done."""
        state = State(self.project)
        attempt = state.attempt(pipeline)
        assert attempt is not None
        return Path(state.checkpoint(pipeline, attempt)) / "commits"

    def table(self, name: str) -> Path:
        return Path(table_location(self.project.tables, name))

    def delta(self, name: str) -> DeltaTable:
        return DeltaTable(str(self.table(name)))

    def assert_each_once(self, name: str, numbers: Iterable[int] | None = None) -> None:
        """Whoever reads the table finds each record once."""
        wanted = Counter(range(self.sent) if numbers is None else numbers)
        for reader in READERS:
            assert Counter(reader(self.table(name))) == wanted, reader.__name__


_ASK_DUCKDB = """
import os, sys
from pathlib import Path
from tests.pipelines.reading import read_by_duckdb
print(*read_by_duckdb(Path(sys.argv[1])), flush=True)
os._exit(0)
"""


def by_duckdb(table: Path) -> list[int]:
    """In a process of its own: DuckDB complains when a process ends that has also used other things."""
    asked = subprocess.run(
        [sys.executable, "-c", _ASK_DUCKDB, str(table)], capture_output=True, text=True, timeout=60
    )
    assert asked.returncode == 0, asked.stderr
    return [int(number) for number in asked.stdout.split()]


READERS: tuple[Callable[[Path], list[int]], ...] = (read_by_pandas, read_by_polars, by_duckdb)
