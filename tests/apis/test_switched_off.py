"""Every API of a feature that is not built answers in every version, with the code of a Kafka without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from klamm.model.errors import ErrorCode
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.messages import k30_create_acls as m30
from klamm.protocol.messages import k31_delete_acls as m31
from klamm.protocol.messages import k69_consumer_group_describe as m69
from klamm.protocol.messages import k77_share_group_describe as m77
from klamm.protocol.messages import k89_streams_group_describe as m89
from klamm.protocol.messages import k90_describe_share_group_offsets as m90
from klamm.protocol.schema import Message
from klamm.testing import Broker
from klamm.testing.wire import WireConnection

NOT_BUILT = [
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.SHARE_GROUP_HEARTBEAT,
    ApiKey.SHARE_GROUP_DESCRIBE,
    ApiKey.SHARE_FETCH,
    ApiKey.SHARE_ACKNOWLEDGE,
    ApiKey.STREAMS_GROUP_HEARTBEAT,
    ApiKey.STREAMS_GROUP_DESCRIBE,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS,
]
ACLS = [ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS]
REQUESTS_WITH_ELEMENTS: dict[ApiKey, Message] = {
    ApiKey.CREATE_ACLS: m30.CreateAclsRequest(creations=[m30.AclCreation(), m30.AclCreation()]),
    ApiKey.DELETE_ACLS: m31.DeleteAclsRequest(filters=[m31.DeleteAclsFilter(), m31.DeleteAclsFilter()]),
    ApiKey.CONSUMER_GROUP_DESCRIBE: m69.ConsumerGroupDescribeRequest(group_ids=["a", "b"]),
    ApiKey.SHARE_GROUP_DESCRIBE: m77.ShareGroupDescribeRequest(group_ids=["a", "b"]),
    ApiKey.STREAMS_GROUP_DESCRIBE: m89.StreamsGroupDescribeRequest(group_ids=["a", "b"]),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: m90.DescribeShareGroupOffsetsRequest(
        groups=[m90.DescribeShareGroupOffsetsRequestGroup(group_id=name) for name in ("a", "b")]
    ),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def codes_in(response: Any) -> list[int]:
    """The error code of the whole answer, or those of its elements where it has none of its own."""
    if hasattr(response, "error_code"):
        return [response.error_code]
    elements = next(value for field in response.__fields__ if (value := getattr(response, field.name)))
    return [each.error_code for each in elements]


def every_version(keys: list[ApiKey]) -> pytest.MarkDecorator:
    cases = [
        (key, version)
        for key in keys
        for version in range(API_VERSIONS[key].min_version, API_VERSIONS[key].max_version + 1)
    ]
    return pytest.mark.parametrize(
        ("key", "version"), cases, ids=[f"{key.title}-v{version}" for key, version in cases]
    )


def ask(broker: Broker, key: ApiKey, version: int) -> list[int]:
    request = REQUESTS_WITH_ELEMENTS.get(key) or API_VERSIONS[key].request()
    with WireConnection(broker.bootstrap) as wire:
        codes = codes_in(wire.call(request, version))
    assert len(codes) == (2 if key in REQUESTS_WITH_ELEMENTS else 1)
    return codes


@every_version(NOT_BUILT)
def test_what_is_not_built_is_an_unsupported_version(broker: Broker, key: ApiKey, version: int) -> None:
    assert set(ask(broker, key, version)) == {ErrorCode.UNSUPPORTED_VERSION}


@every_version(ACLS)
def test_without_access_control_security_is_disabled(broker: Broker, key: ApiKey, version: int) -> None:
    assert set(ask(broker, key, version)) == {ErrorCode.SECURITY_DISABLED}
