"""The progress of a tail or a replay, and the lines that show it. A core."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Progress:
    """Counts since the start. The display reads them while they change."""

    records: int = 0
    """Records that were sent, acknowledged or not."""
    bytes: int = 0
    """Bytes that were read from files."""
    acknowledged: int = 0
    """Records that the broker has acknowledged."""
    files: int = 0
    """Open files."""
    behind_bytes: int = 0
    """Bytes in the files that were not read yet, at the last check."""
    cut_lines: int = 0
    truncated_files: int = 0
    resent_records: int = 0
    """Records of an earlier run that were not acknowledged, and were sent again."""
    lost_records: int = 0
    """Records of an earlier run that were not acknowledged, and are no longer in the files."""
    unparsed_lines: int = 0
    """Lines that did not fit the format by which lines are parsed, and were sent as they are."""
    bad_lines: int = 0
    """Lines of a replayed file that could not be parsed."""

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class Rates:
    """Rates per second, between two calls."""

    def __init__(self, now: float) -> None:
        self._at = now
        self._records = 0
        self._bytes = 0

    def line(self, progress: Progress, now: float) -> str:
        """The line of progress."""
        seconds = max(now - self._at, 1e-9)
        records = (progress.records - self._records) / seconds
        moved = (progress.bytes - self._bytes) / seconds
        self._at, self._records, self._bytes = now, progress.records, progress.bytes
        parts = [
            count_text(progress.records, "line"),
            f"{_short(records)} lines/s",
            f"{moved / 1e6:.1f} MB/s",
        ]
        if progress.files:
            parts.append(count_text(progress.files, "file"))
            parts.append(f"{size_text(progress.behind_bytes)} behind")
        waiting = progress.records - progress.acknowledged
        if waiting:
            parts.append(f"{waiting:,} not acknowledged")
        return " · ".join(parts)


def summary(progress: Progress, seconds: float) -> str:
    """The line at the end."""
    rate = progress.bytes / 1e6 / max(seconds, 1e-9)
    lines = count_text(progress.acknowledged, "line")
    text = f"{lines} ({size_text(progress.bytes)}) in {seconds:.1f} s, {rate:.1f} MB/s"
    extras = [
        (progress.resent_records, "of the last run were sent again"),
        (progress.unparsed_lines, "did not fit --parse and were sent as they are"),
        (progress.cut_lines, "cut because they were too long"),
        (progress.truncated_files, "files truncated"),
        (progress.bad_lines, "bad lines skipped"),
        (progress.lost_records, "LOST: their files no longer exist"),
        (progress.records - progress.acknowledged, "not acknowledged; the next start sends them"),
    ]
    return "; ".join([text, *(f"{count:,} {what}" for count, what in extras if count)])


def count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def size_text(size: float) -> str:
    """A size for users, such as 1.5 MB."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _short(number: float) -> str:
    return f"{number / 1e6:.2f} M" if number >= 1e6 else f"{number:,.0f}"
