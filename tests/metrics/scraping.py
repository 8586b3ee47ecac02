"""Scrapes a broker as Prometheus does, and reads the text strictly."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from typing import NamedTuple

from klamm.metrics.text import CONTENT_TYPE
from klamm.testing import Broker

HTTP = {"klamm.http.listener": "127.0.0.1:0"}
"""The configuration of a broker that serves its metrics on a free port."""

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (\S+)")
_META = re.compile(rf"# (HELP|TYPE) ({_NAME}) (.+)")
_SUFFIXES = {"summary": ("", "_sum", "_count"), "counter": ("",), "gauge": ("",)}

Series = dict[frozenset[str], float]
"""The values of one name by their labels, each as name="value"."""


class Scrape(NamedTuple):
    series: dict[str, Series]
    types: dict[str, str]

    def value(self, name: str, **labels: object) -> float:
        """Of the one series that has these labels and perhaps others."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        (found,) = (value for key, value in self.series[name].items() if wanted <= key)
        return found

    def sum(self, name: str, **labels: object) -> float:
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        return sum(value for key, value in self.series.get(name, {}).items() if wanted <= key)


def parse(text: str) -> Scrape:
    """Fails for a line that is not valid, a series that is there twice, and lines apart from their family."""
    series: dict[str, Series] = {}
    types: dict[str, str] = {}
    helped = ""
    family = ""
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        if line.startswith("#"):
            meta = _META.fullmatch(line)
            assert meta is not None, line
            if meta[1] == "HELP":
                helped = meta[2]
            else:
                family = meta[2]
                assert family == helped and family not in types, line
                types[family] = meta[3]
            continue
        sample = _SAMPLE.fullmatch(line)
        assert sample is not None, line
        assert sample[1] in {family + suffix for suffix in _SUFFIXES[types[family]]}, line
        labels = frozenset(re.findall(_LABEL, sample[2] or ""))
        of_name = series.setdefault(sample[1], {})
        assert labels not in of_name, line
        of_name[labels] = float(sample[3])
    return Scrape(series, types)


class Got(NamedTuple):
    status: int
    content_type: str
    body: str


def get(broker: Broker, path: str, **headers: str) -> Got:
    assert broker.node is not None and broker.node.monitoring is not None
    address = broker.node.monitoring.address
    assert address is not None
    return get_from(address, path, **headers)


def get_from(address: str, path: str, **headers: str) -> Got:
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return Got(answer.status, answer.headers["Content-Type"], answer.read().decode())
    except urllib.error.HTTPError as error:
        return Got(error.code, error.headers["Content-Type"], error.read().decode())


def scrape(broker: Broker) -> Scrape:
    got = get(broker, "/metrics")
    assert (got.status, got.content_type) == (200, CONTENT_TYPE)
    return parse(got.body)
