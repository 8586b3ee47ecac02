"""What a client may do with a resource, as the bits that Metadata and DescribeCluster report.

There are no access rules yet, so everybody may do everything. A bit's position is the number of the
operation: read 3, write 4, create 5, delete 6, alter 7, describe 8, cluster action 9, describe configs 10,
alter configs 11, idempotent write 12.
"""

from __future__ import annotations

NOT_ASKED = -(2**31)


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS = _bits(3, 4, 5, 6, 7, 8, 10, 11)
CLUSTER_OPERATIONS = _bits(5, 7, 8, 9, 10, 11, 12)
