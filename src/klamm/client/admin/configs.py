"""Settings of topics, brokers and groups: describe, alter, and list the resources that have settings.

Requests about a broker's own settings go to that broker. Any broker describes the others; the controller
alters them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from klamm.client.admin.calls import AdminCalls, Again, Outcome
from klamm.client.admin.types import (
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    ResourceType,
    SettingValue,
)
from klamm.client.errors import ClientError, ClientMisused
from klamm.config.alterations import AlterOperation
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from klamm.protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from klamm.protocol.messages.k74_list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

Value = TypeVar("Value")


def setting_text(name: str, value: SettingValue) -> str:
    """A Python value as Kafka writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return ",".join(str(item) for item in value)
    raise ClientMisused(
        f"{name}={value!r} is not a valid value of a setting",
        advice="Give a text, a number, true or false, or a list of texts",
    )


def as_resource(resource: ConfigResource) -> ConfigResource:
    if not isinstance(resource, ConfigResource):
        raise ClientMisused(
            f"{resource!r} is not a resource with settings",
            advice="Give ConfigResource.topic(...), .broker(...), .all_brokers() or .group(...)",
        )
    return resource


# ---- describe


async def describe_configs(
    calls: AdminCalls,
    resources: Iterable[ConfigResource],
    keys: Sequence[str] | None,
    timeout: float | None,
) -> dict[ConfigResource, dict[str, ConfigEntry]]:
    async def ask(
        broker: int | None, chosen: list[ConfigResource]
    ) -> dict[ConfigResource, Outcome[dict[str, ConfigEntry]]]:
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=one.type,
                    resource_name=one.name,
                    configuration_keys=None if keys is None else list(keys),
                )
                for one in chosen
            ],
            include_synonyms=True,
            include_documentation=True,
        )
        response = await (calls.call_any(request) if broker is None else calls.call(broker, request))
        outcomes: dict[ConfigResource, Outcome[dict[str, ConfigEntry]]] = {}
        for one in response.results:
            resource = ConfigResource(_resource_type(one.resource_type), one.resource_name)
            if one.error_code != ErrorCode.NONE:
                what = f"describing the settings of {resource}"
                outcomes[resource] = calls.failure(one.error_code, what, one.error_message)
            else:
                outcomes[resource] = {entry.name: _entry(entry) for entry in one.configs}
        return outcomes

    return await calls.ask_about(
        "describing settings",
        [as_resource(one) for one in resources],
        lambda pending: _by_broker(calls, pending, ask),
        timeout,
    )


def _entry(entry: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        entry.name,
        entry.value,
        config_source(entry.config_source),
        entry.read_only,
        entry.is_sensitive,
        tuple(ConfigSynonym(one.name, one.value, config_source(one.source)) for one in entry.synonyms),
        _type(entry.config_type),
        entry.documentation,
    )


def config_source(number: int) -> ConfigSource | int:
    """The source of a value; a number that we do not know, from a newer broker, stays a number."""
    return ConfigSource(number) if number in set(ConfigSource) else number


def _type(number: int) -> ConfigType | int | None:
    if number == 0:
        return None
    return ConfigType(number) if number in set(ConfigType) else number


def _resource_type(number: int) -> ResourceType:
    try:
        return ResourceType(number)
    except ValueError:
        raise ClientMisused(f"the broker's answer has a resource of the unknown type {number}") from None


# ---- alter


async def alter_configs(
    calls: AdminCalls,
    changes: Mapping[ConfigResource, ConfigChange],
    validate_only: bool,
    timeout: float | None,
) -> None:
    wanted = {as_resource(resource): _alterations(change) for resource, change in changes.items()}

    async def ask(
        broker: int | None, chosen: list[ConfigResource]
    ) -> dict[ConfigResource, Outcome[ConfigResource]]:
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(resource_type=one.type, resource_name=one.name, configs=wanted[one])
                for one in chosen
            ],
            validate_only=validate_only,
        )
        response = await (calls.call_controller(request) if broker is None else calls.call(broker, request))
        outcomes: dict[ConfigResource, Outcome[ConfigResource]] = {}
        for one in response.responses:
            resource = ConfigResource(_resource_type(one.resource_type), one.resource_name)
            outcomes[resource] = resource
            if one.error_code != ErrorCode.NONE:
                what = f"altering the settings of {resource}"
                outcomes[resource] = calls.failure(one.error_code, what, one.error_message)
        return outcomes

    await calls.ask_about(
        "altering settings", wanted, lambda pending: _by_broker(calls, pending, ask), timeout
    )


def _alterations(change: ConfigChange) -> list[AlterableConfig]:
    operations = [
        (AlterOperation.SET, change.set),
        (AlterOperation.APPEND, change.append),
        (AlterOperation.SUBTRACT, change.subtract),
    ]
    alterations = [
        AlterableConfig(name=name, config_operation=operation, value=setting_text(name, value))
        for operation, settings in operations
        for name, value in settings.items()
    ]
    alterations += [
        AlterableConfig(name=name, config_operation=AlterOperation.DELETE, value=None)
        for name in change.delete
    ]
    if not alterations:
        raise ClientMisused("there is nothing to alter", advice="Give set, delete, append or subtract")
    return alterations


# ---- list


async def list_config_resources(
    calls: AdminCalls, types: Sequence[ResourceType], timeout: float | None
) -> list[ConfigResource]:
    what = "listing the resources with settings"

    async def ask() -> list[ConfigResource]:
        request = ListConfigResourcesRequest(resource_types=[int(one) for one in types])
        response: ListConfigResourcesResponse = await calls.call_any(request)
        if response.error_code != ErrorCode.NONE:
            raise calls.failure(response.error_code, what)
        return sorted(
            ConfigResource(_resource_type(one.resource_type), one.resource_name)
            for one in response.config_resources
        )

    return await calls.network.retrying(what, calls.limit(timeout), ask)


# ---- whom to ask


_Ask = Callable[[int | None, list[ConfigResource]], Awaitable[Mapping[ConfigResource, Outcome[Value]]]]


async def _by_broker(
    calls: AdminCalls, resources: Sequence[ConfigResource], ask: _Ask[Value]
) -> dict[ConfigResource, Outcome[Value]]:
    """Ask each broker about itself, and any broker about the rest: `ask` gets None instead of a broker."""
    groups: dict[int | None, list[ConfigResource]] = defaultdict(list)
    for one in resources:
        groups[_broker_of(one)].append(one)
    outcomes: dict[ConfigResource, Outcome[Value]] = {}
    known = await calls.brokers() if groups.keys() - {None} else []
    for broker, chosen in groups.items():
        if broker is not None and broker not in known:
            code = ErrorCode.BROKER_NOT_AVAILABLE
            outcomes |= {one: calls.failure(code, f"asking broker {broker}") for one in chosen}
            continue
        try:
            outcomes |= await ask(broker, chosen)
        except ClientError as error:
            if not error.retriable:
                raise
            outcomes |= {one: Again(error) for one in chosen}
    return outcomes


def _broker_of(resource: ConfigResource) -> int | None:
    if resource.type not in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) or not resource.name:
        return None
    try:
        return int(resource.name)
    except ValueError:
        raise ClientMisused(
            f"{resource.name!r} is not the id of a broker", advice="Give its number"
        ) from None
