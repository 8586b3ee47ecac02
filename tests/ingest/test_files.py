"""Which file is which, on a make-believe disk that renames, truncates, deletes and uses inodes again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from klamm.ingest import files as files_module
from klamm.ingest.files import FINGERPRINT_BYTES, FileTable, Fingerprint, Look, Seen, TailedFile

RELEASE_AFTER_S = 10.0
NAMES = ("a.log", "b.log")
OTHER_NAMES = ("a.1", "b.1")


@dataclass
class Inode:
    number: int
    content: bytes = b""
    is_held: bool = False
    changed: bool = True


@dataclass
class Disk:
    """Names lead to inodes; the number of one that nobody holds or names is used again at once."""

    names: dict[str, Inode] = field(default_factory=dict)
    held: dict[int, Inode] = field(default_factory=dict)

    def create(self, name: str) -> Inode:
        used = {inode.number for inode in (*self.names.values(), *self.held.values())}
        self.names[name] = Inode(next(number for number in range(1, 100) if number not in used))
        return self.names[name]

    def listing(self, names: tuple[str, ...]) -> Iterator[Seen]:
        for name in names:
            if (inode := self.names.get(name)) is not None:
                yield Seen(name, 7, inode.number, len(inode.content), inode.content[:FINGERPRINT_BYTES])


class Following(RuleBasedStateMachine):
    """Every line that was there to be seen is read once, in the order of its file."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk()
        self.table = FileTable([], release_after_s=RELEASE_AFTER_S)
        self.now = 0.0
        self.line = 0
        self.written: dict[int, list[int]] = {}
        self.ways: dict[int, int] = {}  # which log each line was written to
        self.read: list[int] = []

    # ---- the disk

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 3))
    def append(self, name: str, count: int) -> None:
        inode = self.disk.names.get(name) or self.disk.create(name)
        for _ in range(count):
            self.line += 1
            inode.content += b"%d\n" % self.line
        inode.changed = True

    @rule(index=st.sampled_from([0, 1]))
    def rotate(self, index: int) -> None:
        if NAMES[index] in self.disk.names:
            self.look()  # a file that comes and goes between two looks is not seen by anybody
            self.disk.names[OTHER_NAMES[index]] = self.disk.names.pop(NAMES[index])

    @rule(index=st.sampled_from([0, 1]))
    def rotate_back(self, index: int) -> None:
        if OTHER_NAMES[index] in self.disk.names and NAMES[index] not in self.disk.names:
            self.disk.names[NAMES[index]] = self.disk.names.pop(OTHER_NAMES[index])

    @rule(name=st.sampled_from(NAMES))
    def truncate(self, name: str) -> None:
        if name in self.disk.names:
            self.look()
            self.disk.names[name].content = b""
            self.disk.names[name].changed = True

    @rule(name=st.sampled_from(NAMES + OTHER_NAMES))
    def delete(self, name: str) -> None:
        self.look()
        self.disk.names.pop(name, None)

    # ---- the tail

    @rule(seconds=st.sampled_from([0.1, RELEASE_AFTER_S]))
    def look(self, seconds: float = 0.1) -> None:
        self.now += seconds
        self.take(self.table.listed(self.disk.listing(NAMES), self.now))
        self.poll()

    @rule()
    def poll(self) -> None:
        for file in self.table.open_files:
            inode = self.disk.held[file.inode]
            head = inode.content[:FINGERPRINT_BYTES] if inode.changed else None
            inode.changed = False
            look = self.table.look(file, len(inode.content), head, self.now)
            if look is Look.RESTART:
                file = self.table.restarted(file, self.now)
                head = inode.content[:FINGERPRINT_BYTES]
                look = self.table.look(file, len(inode.content), head, self.now)
            if look is Look.READ:
                self.read += map(int, inode.content[file.position :].split())
                file.position = len(inode.content)
            elif look is Look.RELEASE:
                self.table.released(file, is_deleted=inode not in self.disk.names.values())
                del self.disk.held[file.inode]

    @rule()
    def restart_the_tail(self) -> None:
        """What it knew is on disk; files were renamed while it was away."""
        self.look()
        known = [replace(file, is_open=False) for file in (*self.table.open_files, *self.table.closed_files)]
        self.disk.held.clear()
        self.table = FileTable(known, release_after_s=RELEASE_AFTER_S)
        self.take(self.table.listed(self.disk.listing(NAMES), self.now))
        self.take(self.table.listed(self.disk.listing(OTHER_NAMES), self.now, is_listed=False))

    def take(self, opened: list[TailedFile]) -> None:
        for file in opened:
            inode = self.disk.names[file.path]
            inode.changed = True  # whoever opens it knows nothing of it yet
            self.disk.held[file.inode] = inode

    @invariant()
    def nothing_is_read_twice(self) -> None:
        assert len(self.read) == len(set(self.read)), f"twice: {self.read}"

    def teardown(self) -> None:
        self.look()
        self.look()
        assert sorted(self.read) == list(range(1, self.line + 1)), f"of {self.line} lines: {self.read}"


Following.TestCase.settings = settings(max_examples=100, stateful_step_count=20)
TestFollowing = Following.TestCase


# ---- single cases


def seen(path: str = "a.log", inode: int = 5, content: bytes = b"first line\n", device: int = 7) -> Seen:
    return Seen(path, device, inode, len(content), content)


def known(**changes: object) -> TailedFile:
    file = TailedFile(3, "a.log", 7, 5, Fingerprint.of(b"first line\n"), 11)
    return replace(file, **changes)  # type: ignore[arg-type]


def opened(file: TailedFile, one: Seen) -> TailedFile:
    (found,) = FileTable([file], release_after_s=1.0).listed([one], 0.0)
    return found


def test_a_known_file_goes_on_where_it_was() -> None:
    assert opened(known(), seen()).position == 11
    assert opened(known(), seen(content=b"first line\nsecond\n")).position == 11
    assert opened(known(), seen(path="renamed")).position == 11


def test_an_inode_that_is_used_again_is_another_file() -> None:
    found = opened(known(), seen(content=b"other line\n"))
    assert (found.position, found.file_id) == (0, 4)


def test_a_device_that_has_another_number_after_a_restart() -> None:
    assert opened(known(), seen(device=8)).position == 11
    assert opened(known(), seen(device=8, path="elsewhere")).position == 0


def test_two_names_of_one_file_are_one_file() -> None:
    table = FileTable([], release_after_s=1.0)
    assert len(table.listed([seen("a.log"), seen("link.log")], 0.0)) == 1
    assert table.is_followed(7, 5)
    assert table.listed([seen("link.log")], 1.0) == []
    assert table.open_files[0].path == "link.log"


def test_a_fingerprint_is_of_the_first_bytes_only() -> None:
    long = b"x" * FINGERPRINT_BYTES
    assert Fingerprint.of(long).fits(long + b"more")
    assert Fingerprint.of(long + b"more") == Fingerprint.of(long)
    assert not Fingerprint.of(long).fits(long[:-1])


def test_the_oldest_that_are_gone_are_forgotten(monkeypatch: object) -> None:
    files = [TailedFile(number, f"{number}.log", 7, number) for number in range(1, 8)]
    table = FileTable(files, release_after_s=1.0)
    assert table.forget_oldest() == []
    getattr(monkeypatch, "setattr")(files_module, "MOST_REMEMBERED", 3)  # noqa: B009
    assert [file.file_id for file in table.forget_oldest()] == [1, 2, 3, 4]
    assert [file.file_id for file in table.closed_files] == [5, 6, 7]


def test_a_file_without_a_name_is_watched_for_a_while_and_let_go() -> None:
    table = FileTable([known()], release_after_s=10.0)
    (file,) = table.listed([seen()], 0.0)
    assert table.look(file, 11, seen().head, 0.0) is Look.WAIT
    assert table.listed([], 1.0) == []
    assert table.look(file, 11, None, 5.0) is Look.WAIT
    assert table.look(file, 20, b"first line\nsecond\n", 8.0) is Look.READ  # its writer had not noticed
    file.position = 20
    assert table.look(file, 20, None, 17.0) is Look.WAIT
    assert table.look(file, 20, None, 18.0) is Look.RELEASE
    table.listed([seen()], 18.0)
    assert table.look(file, 20, None, 100.0) is Look.WAIT, "it has a name again"
