"""What the tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.commands import Shell


@pytest.fixture
def shell(klamm_bootstrap: str, tmp_path: Path) -> Shell:
    """The commands against the broker of the session, in a folder of their own."""
    return Shell(tmp_path, klamm_bootstrap)
