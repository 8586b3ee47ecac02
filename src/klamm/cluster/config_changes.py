"""What altering the configuration of a topic, of brokers or of a group does: the controller's other half."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from klamm.cluster import layout
from klamm.cluster.changes import Change, Unit
from klamm.cluster.controller.eligible import MIN_ISR_KEY, min_insync_replicas
from klamm.cluster.controller.partitions import PartitionChanges, find_topic, led_by
from klamm.cluster.image import ALL_BROKERS, NO_LEADER, ClusterImage, ImageDelta, TopicDelta, joined
from klamm.config.alterations import Alteration, AlterOperation, NotAList, alter
from klamm.config.broker_keys import BROKER_KEYS, find_broker_row
from klamm.config.group_keys import find_group_row, validate_group_config
from klamm.config.listeners import CHANGEABLE_KEYS, check_listener_of_brokers_stays, parse_listeners
from klamm.config.loading import BrokerConfig, ConfigError
from klamm.config.rows import ResourceType, UpdateMode
from klamm.config.topic_keys import find_topic_row, topic_config, validate_topic_config
from klamm.coordination.store import Create, Delete, Set
from klamm.model.errors import ErrorCode, KafkaError

logger = logging.getLogger("klamm.cluster")


def alter_config(
    image: ClusterImage,
    config: BrokerConfig,
    resource_type: int,
    name: str,
    alterations: Sequence[Alteration],
    *,
    controller_epoch: int,
) -> Change:
    """The alterations of one resource, all or none. `config` is this broker's effective configuration."""
    _check_well_formed(name, alterations)
    try:
        if resource_type == ResourceType.TOPIC:
            change = _alter_topic(image, config, name, alterations)
            return _with_eligible_replicas(image, config, change, [name], alterations, controller_epoch)
        if resource_type == ResourceType.BROKER:
            change = _alter_broker(image, config, name, alterations)
            return _with_eligible_replicas(image, config, change, image.topics, alterations, controller_epoch)
        if resource_type == ResourceType.GROUP:
            return _alter_group(image, config, name, alterations)
    except NotAList as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    except ConfigError as error:
        # Kafka checks the keys of a broker apart from all others, and answers with another code.
        is_broker = resource_type == ResourceType.BROKER
        code = ErrorCode.INVALID_REQUEST if is_broker else ErrorCode.INVALID_CONFIG
        raise KafkaError(code, str(error)) from None
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"resources of type {resource_type} have no configuration here; topics (2), brokers (4) and "
        "groups (32) have",
    )


def replace_config(
    image: ClusterImage,
    config: BrokerConfig,
    resource_type: int,
    name: str,
    wanted: Sequence[tuple[str, str | None]],
    *,
    controller_epoch: int,
) -> Change:
    """The alterations of one resource that leave exactly `wanted`, which is how AlterConfigs works."""
    kept = {key for key, _ in wanted}
    current = _current_config(image, resource_type, name)
    dropped = [Alteration(key, AlterOperation.DELETE, None) for key in current if key not in kept]
    alterations = dropped + [Alteration(key, AlterOperation.SET, text) for key, text in wanted]
    return alter_config(image, config, resource_type, name, alterations, controller_epoch=controller_epoch)


def _current_config(image: ClusterImage, resource_type: int, name: str) -> Mapping[str, str]:
    """The settings of the resource now; none if it does not exist."""
    if resource_type == ResourceType.TOPIC:
        return image.topics[name].config if name in image.topics else {}
    if resource_type == ResourceType.BROKER:
        return image.broker_configs.get(name, {})
    return image.group_configs.get(name, {})


def _check_well_formed(name: str, alterations: Sequence[Alteration]) -> None:
    names: set[str] = set()
    for key, _, _ in alterations:
        if key in names:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"the key {key} is altered twice for {name!r}")
        names.add(key)
    for alteration in alterations:
        if alteration.value is None and alteration.operation is not AlterOperation.DELETE:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{alteration.operation.name} of {alteration.name} needs a value"
            )


def _alter_topic(
    image: ClusterImage, config: BrokerConfig, name: str, alterations: Sequence[Alteration]
) -> Change:
    topic = find_topic(image, name)
    inherited = topic_config(config, {})
    altered = alter(
        find_topic_row, topic.config, alterations, lambda key: find_topic_row(key).text_of(inherited[key])
    )
    validate_topic_config(config, altered)
    operation = Set(layout.topic_config_path(name), layout.encode_config(altered))
    delta = TopicDelta(topic, replace(topic, config=altered), ())
    return Change.of(image, [(operation,)], ImageDelta({name: delta}))


def _alter_broker(
    image: ClusterImage, config: BrokerConfig, name: str, alterations: Sequence[Alteration]
) -> Change:
    if name != ALL_BROKERS and name not in map(str, image.brokers):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no broker {name!r}, so nothing can be altered")
    for alteration in alterations:
        row = BROKER_KEYS.get(alteration.name)
        if row is None or alteration.operation is AlterOperation.DELETE:
            continue
        if row.update_mode is UpdateMode.READ_ONLY:
            raise ConfigError(
                f"{row.name} cannot be changed while the broker runs: "
                "set it where the broker is started, and restart it",
                key=row.name,
            )
        if row.update_mode is UpdateMode.PER_BROKER and name == ALL_BROKERS:
            raise ConfigError(f"{row.name} can be changed for one broker only, not for all", key=row.name)
        if row.name == MIN_ISR_KEY and name != ALL_BROKERS:
            # The controller reckons with its own value whether others have all that a leader commits.
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{row.name} cannot be set for one broker: its leaders could acknowledge records that the "
                "next leader lacks. Set it for all brokers or for a topic",
            )
    before = image.broker_configs.get(name, {})
    altered = alter(find_broker_row, before, alterations, config.text_of)
    stored = _stored(layout.broker_config_path(name), before, altered)
    change = Change.of(image, [stored], ImageDelta(broker_configs={name: altered or None}))
    _check_together(config, change.image.broker_configs.get(ALL_BROKERS, {}), name, altered)
    return change


def _check_together(
    config: BrokerConfig, for_all: Mapping[str, str], name: str, altered: Mapping[str, str]
) -> None:
    """Raise ConfigError if the values do not go together. What other brokers were started with is not known
    here, so their listeners are only parsed: such a broker logs an error if it cannot follow."""
    if name == ALL_BROKERS:
        config.with_dynamic(for_all, {})
    elif name == str(config["node.id"]):
        after = config.with_dynamic(for_all, altered)
        for_brokers = config.optional_str("inter.broker.listener.name")
        if for_brokers is not None and config.inter_broker_listener_name is not None:
            check_listener_of_brokers_stays(config.listeners, after.listeners, for_brokers.upper())
    else:
        config.with_dynamic(for_all, _without_listeners(altered))
        if "listeners" in altered:
            addresses = find_broker_row("listeners").parse(altered["listeners"])
            assert isinstance(addresses, tuple)
            parse_listeners("listeners", addresses)


def _without_listeners(settings: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in settings.items() if key not in CHANGEABLE_KEYS}


def _with_eligible_replicas(
    image: ClusterImage,
    config: BrokerConfig,
    change: Change,
    names: Iterable[str],
    alterations: Sequence[Alteration],
    controller_epoch: int,
) -> Change:
    """The change, after which no replica is eligible to lead that lacks what the ISR commits without it.

    If min.insync.replicas gets lower, nobody is eligible whom the ISR no longer needs. That is stored first:
    leaders learn of the value only when it holds. If it gets higher, a new leader epoch begins: a leader that
    does not know the value yet, and commits alone, cannot make others eligible by a proposal.
    """
    if all(alteration.name != MIN_ISR_KEY for alteration in alterations):
        return change
    new_config = effective_config(config, change.image)
    partitions = PartitionChanges(change.image, new_config, controller_epoch)
    for name in names:
        before, after = image.topics[name], change.image.topics[name]
        is_higher = min_insync_replicas(new_config, after) > min_insync_replicas(config, before)
        for index, partition in enumerate(after.partitions):
            if is_higher and partition.leader != NO_LEADER and len(partition.replicas) > 1:
                partitions.put(name, index, led_by(partition, partition.leader))
            elif partition.eligible_replicas:
                partitions.put(name, index, partition)
    cleared = partitions.change()
    if not cleared.delta:
        return change
    return Change.of(image, (*cleared.units, *change.units), joined((change.delta, cleared.delta)))


def _alter_group(
    image: ClusterImage, config: BrokerConfig, name: str, alterations: Sequence[Alteration]
) -> Change:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the name of the group is empty")
    before = image.group_configs.get(name, {})
    altered = alter(find_group_row, before, alterations, lambda key: None)  # no group key is a list
    validate_group_config(config, altered)
    stored = _stored(layout.group_config_path(name), before, altered)
    return Change.of(image, [stored], ImageDelta(group_configs={name: altered or None}))


def _stored(path: str, before: Mapping[str, str], after: Mapping[str, str]) -> Unit:
    """The operations that store `after`; a node without settings is deleted."""
    if before and after:
        return (Set(path, layout.encode_config(after)),)
    if after:
        return (Create(path, layout.encode_config(after)),)
    return (Delete(path),) if before else ()


def effective_config(config: BrokerConfig, image: ClusterImage) -> BrokerConfig:
    """This broker's configuration with what the image sets at run time."""
    for_all = image.broker_configs.get(ALL_BROKERS, {})
    own = image.broker_configs.get(str(config["node.id"]), {})
    try:
        return config.with_dynamic(for_all, own)
    except ConfigError as error:
        if CHANGEABLE_KEYS.isdisjoint(own):
            raise
        # They were checked by a broker that was started with other listeners than this one.
        logger.error("the listeners that were set for this broker at run time do not count: %s", error)
        return config.with_dynamic(for_all, _without_listeners(own))
