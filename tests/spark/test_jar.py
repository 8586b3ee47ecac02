"""The jar: what ships is what its maker makes, and its maker makes what the Java beside it says."""

from __future__ import annotations

import io
import struct
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from pyspark_klamm.jar import jar_path, make_jar
from tests.conftest import cannot_run
from tests.peers.kafka_jars import PeerMissing, find_java, find_kafka_jars

SPARK_JARS = Path(pyspark.__file__).parent / "jars"
SOURCES = jar_path().with_name("jar_source")


def test_what_ships_is_what_is_made() -> None:
    assert jar_path().read_bytes() == make_jar()


def test_every_class_has_its_source() -> None:
    with zipfile.ZipFile(jar_path()) as jar:
        classes = {name.removesuffix(".class") for name in jar.namelist() if name.endswith(".class")}
    assert classes == {
        path.relative_to(SOURCES).with_suffix("").as_posix() for path in SOURCES.rglob("*.java")
    }


@pytest.mark.long
def test_the_source_compiles_to_the_same(tmp_path: Path) -> None:
    """The same classes with the same members, which name and call the same things."""
    try:
        compiler = [find_java(), "-jar", str(next(find_kafka_jars().glob("ecj-*.jar")))]
    except PeerMissing as problem:
        cannot_run(problem)
    libraries = ":".join(map(str, SPARK_JARS.glob("*.jar")))
    subprocess.run([*compiler, "-17", "-nowarn", "-cp", libraries, "-d", tmp_path, SOURCES], check=True)
    with zipfile.ZipFile(io.BytesIO(make_jar())) as jar:
        for name in jar.namelist():
            if name.endswith(".class"):
                assert (
                    ClassReader(jar.read(name)).summary()
                    == ClassReader((tmp_path / name).read_bytes()).summary()
                ), name


class ClassReader:
    """Reads of a class file what it declares and what it refers to."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)
        self._file.seek(8)
        self._pool: dict[int, tuple[int, bytes]] = {}
        for index in range(1, self._number()):
            (tag,) = self._file.read(1)
            size = self._number() if tag == 1 else {7: 2, 8: 2, 9: 4, 10: 4, 12: 4}[tag]
            self._pool[index] = tag, self._file.read(size)

    def summary(self) -> dict[str, object]:
        self._number()  # access flags
        return {
            "name": self._resolved(self._number()),
            "parent": self._resolved(self._number()),
            "interfaces": [self._resolved(self._number()) for _ in range(self._number())],
            "fields": sorted(self._members()),
            "methods": sorted(self._members()),
            "refers to": {
                self._resolved(index) for index, (tag, _) in self._pool.items() if tag in (7, 8, 9, 10)
            },
        }

    def _members(self) -> Iterator[tuple[int, str, str]]:
        for _ in range(self._number()):
            yield self._number(), self._resolved(self._number()), self._resolved(self._number())
            for _ in range(self._number()):
                self._number()
                self._file.read(*struct.unpack(">I", self._file.read(4)))

    def _resolved(self, index: int) -> str:
        tag, content = self._pool[index]
        if tag == 1:
            return content.decode()
        parts = struct.unpack(f">{len(content) // 2}H", content)
        return f"{tag}:{' '.join(self._resolved(part) for part in parts)}"

    def _number(self) -> int:
        return int.from_bytes(self._file.read(2))


@pytest.mark.parametrize("text", ["klamm.BatchTarget", "ErrorIfExists"])
def test_a_difference_shows(text: str) -> None:
    with zipfile.ZipFile(jar_path()) as jar:
        ours = jar.read("klamm/DefaultSource.class")
    other = ours.replace(text.encode(), text[::-1].encode())
    assert ClassReader(ours).summary() != ClassReader(other).summary()
