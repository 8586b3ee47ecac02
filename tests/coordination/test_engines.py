"""Addresses of coordination stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.coordination.engines import new_store
from klamm.coordination.sqlite import SqliteStore
from klamm.coordination.zookeeper import ZooKeeperStore


@pytest.mark.parametrize(
    ("address", "hosts", "chroot"),
    [
        ("zookeeper://one:2181", "one:2181", ""),
        ("zookeeper://one:2181/", "one:2181", ""),
        ("zookeeper://one,[::1]:2182,10.0.0.1:2183/klamm/a", "one,[::1]:2182,10.0.0.1:2183", "/klamm/a"),
    ],
)
def test_an_ensemble_has_servers_and_perhaps_a_chroot(address: str, hosts: str, chroot: str) -> None:
    store = new_store(address)
    assert isinstance(store, ZooKeeperStore)
    assert (store._hosts, store._chroot) == (hosts, chroot)


@pytest.mark.parametrize("path", ["/data/klamm.sqlite", "data/klamm.sqlite"])
def test_a_file_is_absolute_or_not(path: str) -> None:
    store = new_store(f"sqlite://{path}", session_timeout_s=2)
    assert isinstance(store, SqliteStore)
    assert store._path == Path(path)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("", "expected sqlite://PATH or zookeeper://HOST:PORT"),
        ("sqlite://", "is not the address"),
        ("http://one:2181", "is not the address"),
        ("zookeeper://", "bad server, ''"),
        ("zookeeper://one:2181,", "bad server, ''"),
        ("zookeeper://one:port", "bad server, 'one:port'"),
        ("zookeeper://one:2181/a//b", "bad chroot"),
        ("zookeeper://one:2181/a/", "bad chroot"),
        ("zookeeper://one:2181/" + 32 * "a", "more than 32 bytes"),
    ],
)
def test_what_is_not_an_address_is_refused_with_its_reason(address: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        new_store(address)


def test_a_session_of_zookeeper_has_a_least_timeout() -> None:
    with pytest.raises(ValueError, match="6 s is the least"):
        new_store("zookeeper://one:2181", session_timeout_s=5)
