from __future__ import annotations

from klamm.pipelines.sinks.compaction import CompactionPolicy, choose_run
from klamm.pipelines.sinks.layout import BatchFolder

POLICY = CompactionPolicy(least_folders=3, target_bytes=1000)


def chosen(*sizes: int, attempt: int = 1) -> list[int]:
    folders = [(BatchFolder.of_batch(attempt, batch), size) for batch, size in enumerate(sizes)]
    return [folder.first for folder, _ in choose_run(folders, POLICY)]


def test_small_neighbours_are_merged() -> None:
    assert chosen(10, 10, 10, 10) == [0, 1, 2, 3]


def test_few_folders_are_left_alone() -> None:
    assert chosen(10, 10) == []


def test_large_enough_folders_are_left_alone() -> None:
    assert chosen(1000, 2000, 10, 10, 10) == [2, 3, 4]
    assert chosen(1000, 1000, 1000, 1000) == []


def test_a_folder_much_larger_than_what_came_since_waits() -> None:
    assert chosen(500, 10, 10, 10) == [1, 2, 3]
    assert chosen(500, 100, 100, 100) == [0, 1, 2, 3]


def test_an_older_run_is_merged_behind_a_large_folder() -> None:
    assert chosen(10, 10, 10, 5000, 10) == [0, 1, 2]


def test_attempts_are_not_mixed() -> None:
    folders = [(BatchFolder.of_batch(attempt, batch), 10) for attempt in (1, 2) for batch in range(2)]
    assert choose_run(folders, POLICY) == []


def test_a_row_is_rewritten_about_as_often_as_the_table_doubles() -> None:
    folders: list[tuple[BatchFolder, int]] = []
    policy = CompactionPolicy(least_folders=10, target_bytes=10**9)
    rewritten = 0
    for batch in range(2000):
        folders.append((BatchFolder.of_batch(1, batch), 10))
        run = choose_run(folders, policy) if batch % 10 == 9 else []
        if run:
            rewritten += sum(size for _, size in run)
            whole = BatchFolder(1, run[0][0].first, run[-1][0].last)
            folders = [each for each in folders if each not in run]
            folders.append((whole, sum(size for _, size in run)))
            folders.sort()
    assert rewritten < 2000 * 10 * 12
    assert len(folders) < 40
