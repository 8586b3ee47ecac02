"""What the answers say of features that this broker does not have: each tells a user what to do instead.

The keys of these features are advertised, as by a Kafka that has them switched off, because clients stop at
an error and look for ever for a key that is missing.
"""

from __future__ import annotations

NO_CONSUMER_GROUPS = (
    "this broker serves consumer groups of the classic protocol only: use group.protocol=classic"
)
NO_SHARE_GROUPS = "this broker does not serve share groups: use a consumer group"
NO_STREAMS_GROUPS = "this broker does not serve streams groups: use group.protocol=classic"
NO_AUTHORIZER = "this broker has no authorizer"
