"""Sets up a clone: the virtual environment, and for the tests also the clients that are not Python.

    python3 scripts/setup.py run     install what Klamm needs to run
    python3 scripts/setup.py test    install what the tests need too

The Makefile runs this script with the machine's Python, so it imports only the standard library. Each step
saves a stamp, a hash of its input files, and is skipped while the stamp matches. So a second run takes no
time. If the virtual environment cannot be created, the script fails. If a peer of the tests (kcat, kafkajs,
Apache Kafka, ZooKeeper, Spark's Kafka connector) cannot be installed, the script prints one line, and the
tests that need it say so again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
ENVIRONMENT = REPOSITORY / ".venv"
CACHE = REPOSITORY / ".cache"
CONSTRAINTS = REPOSITORY / "constraints.txt"
OLDEST_PYTHON = (3, 11)
# Debian splits ensurepip off into a package of its own.
VENV_PACKAGE = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"

KAFKA_VERSION = "4.3.0"
KAFKA_JARS = CACHE / f"kafka-{KAFKA_VERSION}"
KAFKA_POM = REPOSITORY / "tests/peers/java/pom.xml"
CONNECTOR_VERSION = "4.2.0"
CONNECTOR_JARS = CACHE / f"spark-kafka-{CONNECTOR_VERSION}"
CONNECTOR_POM = REPOSITORY / "tests/peers/java/spark/pom.xml"
KAFKAJS_SOURCE = REPOSITORY / "tests/clients/kafkajs"
KAFKAJS = CACHE / "kafkajs"

# Commands the tests call, and the Debian package that brings each.
DEBIAN_PACKAGES = {
    "kcat": "kcat",
    "java": "default-jre-headless",
    "mvn": "maven",
    "node": "nodejs",
    "npm": "npm",
    "chromium": "chromium",
    "zsh": "zsh",
    "fish": "fish",
    "systemd-analyze": "systemd",
}
# ZooKeeper is started from its jars, and its package brings no command.
ZOOKEEPER_JAR = Path("/usr/share/java/zookeeper.jar")
COMMAND_TIMEOUT_SECONDS = 1_200


class SetupError(Exception):
    """A step failed. The message is shown to the user."""


def say(line: str) -> None:
    print(f"setup: {line}", flush=True)


def run(command: Sequence[str | Path], **options: object) -> None:
    """Run a command quietly; on failure raise SetupError with the last lines it wrote."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_TIMEOUT_SECONDS,
            check=False,
            **options,  # type: ignore[call-overload]
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"`{' '.join(words[:4])}` did not run: {error}") from error
    if done.returncode != 0:
        lines = [line for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
        reason = "\n    ".join(lines[-8:])
        raise SetupError(f"`{' '.join(words[:4])} ...` failed with {done.returncode}:\n    {reason}")


class Stamp:
    """A hash of a step's input files, saved when the step is done. The step is repeated if an input
    changes."""

    def __init__(self, path: Path, *sources: Path, extra: str = "") -> None:
        self._path = path
        digest = hashlib.sha256(extra.encode())
        for source in sources:
            digest.update(source.read_bytes())
        self._value = digest.hexdigest()

    def stands(self) -> bool:
        return self._path.is_file() and self._path.read_text() == self._value

    def set(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(self._value)


# ---- the virtual environment


def create_environment() -> None:
    if (ENVIRONMENT / "bin/python").exists():
        return
    if sys.version_info < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        raise SetupError(f"Klamm needs Python {wanted} or newer, this is {sys.version.split()[0]}")
    say(f"creating .venv with Python {sys.version.split()[0]}")
    if importlib.util.find_spec("ensurepip") is None and install_debian_packages([VENV_PACKAGE]) is not None:
        if importlib.util.find_spec("pip") is None:
            raise SetupError(f"this Python has neither ensurepip nor pip: install {VENV_PACKAGE} (Debian)")
        run([sys.executable, "-m", "venv", "--without-pip", ENVIRONMENT])
        return
    run([sys.executable, "-m", "venv", ENVIRONMENT])


def pip_install(*arguments: str | Path) -> None:
    if (ENVIRONMENT / "bin/pip").exists():
        pip: list[str | Path] = [ENVIRONMENT / "bin/python", "-m", "pip"]
    else:
        pip = [sys.executable, "-m", "pip", "--python", ENVIRONMENT / "bin/python"]
    # The option -c would not hold where pip builds klamm. There old versions of pip read the first variable,
    # new ones the second. The path is relative, because pip takes one with a space for two.
    constraints = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), CONSTRAINTS.name)
    install = [*pip, "install", "--quiet", "--disable-pip-version-check", *arguments]
    run(install, cwd=REPOSITORY, env=os.environ | constraints)


def install_klamm() -> None:
    # An editable install contains the path of the clone, so the path is part of the stamp.
    stamp = Stamp(
        ENVIRONMENT / "klamm.stamp", REPOSITORY / "pyproject.toml", CONSTRAINTS, extra=str(REPOSITORY)
    )
    if stamp.stands():
        return
    say("installing klamm and its dependencies into .venv (Spark among them: 430 MB)")
    pip_install("-e", ".[spark,zookeeper,console]")
    stamp.set()


def install_development_tools() -> None:
    requirements = REPOSITORY / "requirements-dev.txt"
    stamp = Stamp(ENVIRONMENT / "dev.stamp", requirements, CONSTRAINTS)
    if stamp.stands():
        return
    say("installing the test tools and Python's Kafka clients into .venv")
    pip_install("-r", requirements)
    stamp.set()


# ---- the peers


def install_debian_packages(packages: list[str]) -> str | None:
    """Install Debian packages. Returns None on success, else the reason of the failure."""
    if shutil.which("apt-get") is None:
        return "this machine has no apt-get"
    if os.geteuid() != 0:
        return "only root can install packages"
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *packages]
    say(f"installing Debian packages: {' '.join(packages)}")
    try:
        run(install, env=environment)
    except SetupError:
        try:
            run(["apt-get", "update", "--quiet"], env=environment)
            run(install, env=environment)
        except SetupError as error:
            return str(error)
    return None


def missing_programs() -> dict[str, str]:
    """What the tests run and is not there, with the Debian package that brings it."""
    missing = {
        command: package for command, package in DEBIAN_PACKAGES.items() if shutil.which(command) is None
    }
    return missing if ZOOKEEPER_JAR.is_file() else missing | {"zookeeper": "zookeeper"}


def provide_programs() -> None:
    wanted = missing_programs()
    if not wanted:
        return
    problem = install_debian_packages(sorted(set(wanted.values())))
    if missing := missing_programs():
        packages = " ".join(sorted(set(missing.values())))
        say(f"missing: {', '.join(missing)} ({problem}); as root: apt-get install {packages}")


def provide_kafkajs() -> None:
    manifest, lock = KAFKAJS_SOURCE / "package.json", KAFKAJS_SOURCE / "package-lock.json"
    stamp = Stamp(KAFKAJS / "klamm.stamp", manifest, lock)
    if stamp.stands():
        return
    if shutil.which("npm") is None:
        say("missing: kafkajs (npm is not installed); its tests cannot run")
        return
    say("installing kafkajs into .cache")
    KAFKAJS.mkdir(parents=True, exist_ok=True)
    shutil.copy(manifest, KAFKAJS)
    shutil.copy(lock, KAFKAJS)
    try:
        run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=KAFKAJS)
    except SetupError as error:
        say(f"missing: kafkajs; its tests cannot run: {error}")
        return
    stamp.set()


def provide_kafka_jars() -> None:
    if not os.environ.get("KAFKA_JARS"):
        name = f"Apache Kafka {KAFKA_VERSION}"
        copy_jars(KAFKA_JARS, KAFKA_POM, name, "54 MB", "the tests with the Java client")


def provide_connector_jars() -> None:
    if not os.environ.get("SPARK_KAFKA_JARS"):
        name = f"Spark's Kafka connector {CONNECTOR_VERSION}"
        copy_jars(CONNECTOR_JARS, CONNECTOR_POM, name, "10 MB", "the tests of both connectors side by side")


def copy_jars(jars: Path, pom: Path, name: str, size: str, tests: str) -> None:
    """Copy the dependencies of a pom from Maven's repository into a folder."""
    stamp = Stamp(jars / "klamm.stamp", pom)
    if stamp.stands():
        return
    if shutil.which("mvn") is None:
        say(f"missing: {name} (Maven is not installed)")
        return
    say(f"copying {name} into .cache ({size})")
    shutil.rmtree(jars, ignore_errors=True)
    try:
        run(["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={jars}"])
    except SetupError as error:
        say(f"missing: {name}; {tests} cannot run: {error}")
        return
    stamp.set()


def provide_jars() -> None:
    """One after the other, because two Maven processes cannot write to one local repository at the same
    time."""
    provide_kafka_jars()
    provide_connector_jars()


def provide_peers() -> None:
    provide_programs()
    with ThreadPoolExecutor() as pool:
        for step in [pool.submit(provide_kafkajs), pool.submit(provide_jars)]:
            step.result()


def main() -> int:
    parser = argparse.ArgumentParser(description="Set up this clone of Klamm.")
    parser.add_argument("purpose", choices=["run", "test"])
    purpose = parser.parse_args().purpose
    try:
        create_environment()
        if purpose == "run":
            install_klamm()
            return 0
        # The peers and the environment do not depend on each other, so they are downloaded at the same time.
        with ThreadPoolExecutor() as pool:
            peers = pool.submit(provide_peers)
            install_klamm()
            install_development_tools()
            peers.result()
    except SetupError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
