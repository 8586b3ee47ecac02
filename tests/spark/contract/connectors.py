"""The connectors under the suite: ours under both of its names, and Spark's own in a process with its jars.

Our jar is on the class path of that process too: Spark has to take its own connector all the same.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from pyspark.sql import SparkSession

import pyspark_klamm

P = ParamSpec("P")
T = TypeVar("T")

CALL_TIMEOUT_SECONDS = 150.0

_official_session: SparkSession | None = None


class Caller(Protocol):
    """Runs a function of `queries` with a session, wherever that is."""

    def __call__(self, query: Callable[..., T], /, *arguments: Any) -> T: ...


@dataclass(frozen=True)
class Connector:
    """One of the connectors: the name of its format, and how to run queries with it."""

    title: str
    name: str
    call: Caller

    def run(self, query: Callable[Concatenate[SparkSession, str, P], T], *given: P.args, **_: P.kwargs) -> T:
        return self.call(query, self.name, *given)


def in_session(spark: SparkSession) -> Caller:
    def call(query: Callable[..., T], /, *arguments: Any) -> T:
        return query(spark, *arguments)

    return call


class OfficialProcess:
    """A process with a Spark session of its own that has Spark's connector for Kafka."""

    def __init__(self, jars: list[Path], settings: dict[str, str]) -> None:
        given = settings | {"spark.jars": ",".join(map(str, jars))}
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, initializer=_start_session, initargs=(given,))

    def call(self, query: Callable[..., T], /, *arguments: Any) -> T:
        return self._pool.submit(_with_session, query, arguments).result(CALL_TIMEOUT_SECONDS)

    def stop(self) -> None:
        self._pool.submit(_stop_session).result(CALL_TIMEOUT_SECONDS)
        self._pool.shutdown()


def _start_session(settings: dict[str, str]) -> None:
    global _official_session
    _official_session = pyspark_klamm.session("official", "local[2]", settings)
    _official_session.sparkContext.setLogLevel("OFF")


def _with_session(query: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    return query(_official_session, *arguments)


def _stop_session() -> None:
    assert _official_session is not None
    _official_session.stop()
