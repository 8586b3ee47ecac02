"""A home for Spark on this machine in which Python workers find PySpark as it is installed.

Spark has its workers import PySpark from a zip in its home, which comes before all installed packages.
Nothing that was compiled is kept for a zip, so every process compiles what it imports: more than a second of
work, where the installed package takes a third of that. This home has no such zip. It is a folder of links in
a temporary place, and gone when the process ends.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

_ENTRIES = ("bin", "conf", "data", "jars", "sbin")
"""What Spark looks for in its home, apart from Python's part. A user may have made `conf`."""

_made: dict[Path, Path] = {}


def linked_home(package: Path) -> Path | None:
    """A home for the PySpark that is installed in `package`; None where there is none to be made."""
    if package in _made:
        return _made[package]
    if not (package / "bin/spark-submit").is_file() or not (package / "jars").is_dir():
        return None  # not as pip installs it
    try:
        home = Path(tempfile.mkdtemp(prefix="klamm-spark-"))
        for name in _ENTRIES:
            if (package / name).exists():
                (home / name).symlink_to(package / name)
    except OSError as error:  # it goes without, only slower
        logger.debug("no home for Spark could be made: %s", error)
        return None
    atexit.register(_remove, home, os.getpid())
    _made[package] = home
    return home


def _remove(home: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child leaves it to its parent
        shutil.rmtree(home, ignore_errors=True)
