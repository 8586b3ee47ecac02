"""DescribeLogDirs, key 35: the log directories of a broker, and the size of what is in them.

Versions 1-5, flexible from 2. Version 4 brings the size of the disk, 5 says which directories are
cordoned.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, boolean, field, int16, int32, int64, string


class DescribableLogDirTopic(Struct):
    topic: str = field(string)
    partitions: list[int] = field(array(int32))


class DescribeLogDirsRequest(Message, api_key=35, versions="1-5", flexible="2+"):
    topics: list[DescribableLogDirTopic] | None = field(array(DescribableLogDirTopic), nullable="0+")


class DescribeLogDirsPartition(Struct):
    partition_index: int = field(int32)
    partition_size: int = field(int64)
    offset_lag: int = field(int64)
    is_future_key: bool = field(boolean)


class DescribeLogDirsTopic(Struct):
    name: str = field(string)
    partitions: list[DescribeLogDirsPartition] = field(array(DescribeLogDirsPartition))


class DescribeLogDirsResult(Struct):
    error_code: int = field(int16)
    log_dir: str = field(string)
    topics: list[DescribeLogDirsTopic] = field(array(DescribeLogDirsTopic))
    total_bytes: int = field(int64, versions="4+", default=-1, ignorable=True)
    usable_bytes: int = field(int64, versions="4+", default=-1, ignorable=True)
    is_cordoned: bool = field(boolean, versions="5+", ignorable=True)


class DescribeLogDirsResponse(Message, api_key=35, versions="1-5", flexible="2+"):
    throttle_time_ms: int = field(int32)
    error_code: int = field(int16, versions="3+", ignorable=True)
    results: list[DescribeLogDirsResult] = field(array(DescribeLogDirsResult))
