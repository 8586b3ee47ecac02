"""A SPARK_HOME for this machine in which Python workers import the installed PySpark.

By default Spark's workers import PySpark from a zip in SPARK_HOME, before all installed packages. Python
keeps no bytecode for a zip, so every process compiles what it imports: more than a second, where the
installed package takes a third of that. This SPARK_HOME has no such zip. It is a temporary folder of links,
removed when the process ends.
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
"""What Spark needs in its home, without the Python part. Users may have added `conf`."""

_made: dict[Path, Path] = {}


def linked_home(package: Path) -> Path | None:
    """A SPARK_HOME for the PySpark that is installed in `package`; None if it cannot be made."""
    if package in _made:
        return _made[package]
    if not (package / "bin/spark-submit").is_file() or not (package / "jars").is_dir():
        return None  # not installed by pip
    try:
        home = Path(tempfile.mkdtemp(prefix="klamm-spark-"))
        for name in _ENTRIES:
            if (package / name).exists():
                (home / name).symlink_to(package / name)
    except OSError as error:  # Spark works without it, only slower
        logger.debug("could not create a SPARK_HOME: %s", error)
        return None
    atexit.register(_remove, home, os.getpid())
    _made[package] = home
    return home


def _remove(home: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        shutil.rmtree(home, ignore_errors=True)
