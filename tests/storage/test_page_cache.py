"""What the page cache holds, asked both ways."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from klamm.storage.segments import page_cache
from klamm.storage.segments.page_cache import WouldBlock, is_resident, read_nowait, warm

SIZE = 4 * 1024 * 1024
ATTEMPTS = 20
PAUSE_S = 0.05


@pytest.fixture
def cold_fd(tmp_path: Path) -> int:
    """A file whose pages the kernel was asked to drop."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    for _ in range(ATTEMPTS):  # the kernel keeps pages that another core has at hand at that moment
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            read_nowait(fd, SIZE // 2, 1)
        except WouldBlock:
            return fd
        time.sleep(PAUSE_S)
    os.close(fd)
    pytest.skip(f"the file system of {tmp_path} keeps everything in memory")


@pytest.mark.parametrize(
    "probe", [page_cache._cachestat_or_none, lambda: page_cache._is_resident_by_sampling]
)
def test_cold_and_warm(cold_fd: int, probe: object, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = probe()  # type: ignore[operator]
    if chosen is None:
        pytest.skip("this kernel has no cachestat")
    monkeypatch.setattr(page_cache, "_probe", chosen)
    assert not is_resident(cold_fd, 0, SIZE)
    warm(cold_fd, 1_000_000, 1_000_000)
    assert is_resident(cold_fd, 1_000_000, 1_000_000)
    assert read_nowait(cold_fd, 1_000_000, 1000) == os.pread(cold_fd, 1000, 1_000_000)
    warm(cold_fd, 0, SIZE)
    assert is_resident(cold_fd, 0, SIZE)
    os.close(cold_fd)


def test_what_was_just_written_is_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    with open(path, "rb") as file:
        assert is_resident(file.fileno(), 10, SIZE - 10)
        assert read_nowait(file.fileno(), 5, 10) == bytes(10)


def test_reading_past_the_end_is_not_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with open(path, "rb") as file, pytest.raises(WouldBlock):
        read_nowait(file.fileno(), 1, 10)
