"""The default folder for the positions of a tail."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path


def default_folder(topic: str, patterns: Sequence[str], environment: Mapping[str, str]) -> Path:
    """A folder in the user's state directory, the same for the same topic and patterns."""
    home = Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    absolute = sorted({os.path.abspath(pattern) for pattern in patterns})
    digest = blake2b("\0".join(absolute).encode(errors="surrogateescape"), digest_size=6).hexdigest()
    return home / "klamm/ingest" / f"{topic}-{digest}"
