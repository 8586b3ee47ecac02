"""The console of one cluster: what pages and the JSON API have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from klamm.console.changing import Changes
from klamm.console.watching.collector import Collector
from klamm.console.watching.pipelines import PipelineWatch

FIRST_PICTURE_S = 2.0
"""How long a page waits for the first picture before it says that there is none."""


@dataclass(frozen=True)
class Settings:
    """How a console was started."""

    bootstrap: str
    config: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8080
    is_read_only: bool = False
    password_hash: str | None = None
    projects: tuple[Path, ...] = ()
    """The folders of projects of pipelines."""


@dataclass(frozen=True)
class Console:
    """One console process."""

    settings: Settings
    collector: Collector
    changes: Changes
    pipelines: PipelineWatch
