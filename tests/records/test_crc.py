"""The checksum: its known value, also where the package `crc32c` is made otherwise inside."""

from __future__ import annotations

from types import SimpleNamespace

from klamm.records import crc

CHECK_VALUE = 0xE3069283
"""What CRC-32C gives for the nine digits, by its definition."""


def test_the_checksum_has_its_known_value():
    assert crc.crc32c(b"123456789") == CHECK_VALUE


def test_a_package_without_the_inner_module_serves_as_well(monkeypatch):
    """Versions before 2.5 are one module, and later ones may change again."""
    monkeypatch.setattr(crc, "PathFinder", SimpleNamespace(find_spec=lambda *arguments: None))
    assert crc._load()(b"123456789") == CHECK_VALUE
