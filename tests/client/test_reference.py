"""The reference is what the docstrings say, and every counter counts something."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.client.counters import COUNTERS, ClientCounters
from scripts import client_reference

REPOSITORY = Path(__file__).parents[2]


def test_the_document_is_what_the_docstrings_say():
    document = REPOSITORY / "docs" / "CLIENT_REFERENCE.md"
    assert document.read_text() == client_reference.render(), (
        "run: .venv/bin/python scripts/client_reference.py > docs/CLIENT_REFERENCE.md"
    )


def test_counters_start_at_nothing_and_have_words():
    counters = ClientCounters()
    assert counters.as_dict() == dict.fromkeys(COUNTERS, 0)
    counters.requests += 3
    assert counters.as_dict()["requests"] == 3
    assert all(words.endswith(".") for words in COUNTERS.values())


@pytest.mark.parametrize("name", COUNTERS)
def test_every_counter_is_counted(name):
    sources = [path.read_text() for path in (REPOSITORY / "src/klamm/client").rglob("*.py")]
    assert any(f"counters.{name}" in text for text in sources)
