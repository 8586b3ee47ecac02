"""Settings of topics, brokers and groups: what they are, where they come from, and changing them.

settings = await settings_of(admin, topic("orders"))      # resources: ConfigResource.topic("orders"), …
await change(admin, [resource], {"retention.ms": "1000"}, unset=["segment.ms"], validate_only=True)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.client.admin.types import ConfigChange, ConfigEntry, ConfigResource, ConfigSource, ConfigType
from klamm.client.errors import BatchFailed
from klamm.operating.errors import CannotDo

if TYPE_CHECKING:
    from klamm.client.admin.admin import Admin

SOURCES = {
    ConfigSource.DYNAMIC_TOPIC: "topic",
    ConfigSource.DYNAMIC_BROKER: "broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "all brokers",
    ConfigSource.STATIC_BROKER: "broker's file",
    ConfigSource.DEFAULT: "default",
    ConfigSource.DYNAMIC_GROUP: "group",
}
"""Where a value is set, in words."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a resource. `value` is None if it is not set, and if it is secret.

    `source` says where the value is set, `default` what it is if it is unset there: None if not known. `type`
    and `documentation` are "" if the broker does not say.
    """

    resource: ConfigResource
    name: str
    value: str | None
    source: str
    is_default: bool
    default: str | None
    read_only: bool
    sensitive: bool
    type: str
    documentation: str


async def settings_of(
    admin: Admin, resources: Sequence[ConfigResource], keys: Iterable[str] | None = None
) -> list[Setting]:
    """The settings of resources, by name. Raises CannotDo for a key that none of them has."""
    try:
        found = await admin.describe_configs(resources, keys)
    except BatchFailed as failed:
        raise next(iter(failed.errors.values())) from None
    settings = [
        _setting(resource, entry) for resource in resources for _, entry in sorted(found[resource].items())
    ]
    if unknown := sorted(set(keys or ()) - {each.name for each in settings}):
        raise CannotDo(
            f"{resources[0]} has no setting {unknown[0]}", advice="Ask for all settings to see their names"
        )
    return settings


def _setting(resource: ConfigResource, entry: ConfigEntry) -> Setting:
    return Setting(
        resource,
        entry.name,
        None if entry.sensitive else entry.value,
        source_text(entry.source),
        entry.is_default,
        None if entry.sensitive else _default(entry),
        entry.read_only,
        entry.sensitive,
        entry.type.name.lower() if isinstance(entry.type, ConfigType) else "",
        " ".join((entry.documentation or "").split()),
    )


def _default(entry: ConfigEntry) -> str | None:
    """The value in the next place where the setting is set. Its name there may have another unit: the value
    of log.retention.hours is none of retention.ms."""
    if entry.is_default:
        return entry.value
    unit = entry.name.rpartition(".")[2]
    below = [each for each in entry.synonyms if each.source != entry.source]
    return below[0].value if below and below[0].name.rpartition(".")[2] == unit else None


def source_text(source: ConfigSource | int) -> str:
    """A source in words; the number of one that we do not know."""
    return SOURCES.get(source, str(int(source))) if isinstance(source, ConfigSource) else str(source)


async def change(
    admin: Admin,
    resources: Sequence[ConfigResource],
    set: Mapping[str, str],
    unset: Iterable[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Set and unset settings of each resource: all of a resource's, or none. `validate_only` only asks the
    brokers whether they would. Raises the error of the first resource whose settings were refused."""
    wanted = ConfigChange(set, tuple(unset))
    try:
        await admin.alter_configs(dict.fromkeys(resources, wanted), validate_only=validate_only)
    except BatchFailed as failed:
        raise next(iter(failed.errors.values())) from None
