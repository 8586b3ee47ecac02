"""Settings of a real broker, its topics and its groups: where they come from, and changing them."""

from __future__ import annotations

import pytest

import klamm.aio
from klamm.client.admin.types import ConfigResource
from klamm.client.errors import BrokerError, UnknownTopic
from klamm.operating.configs import Setting, change, settings_of
from klamm.operating.errors import CannotDo
from tests.client.topics import unique


async def one(admin: klamm.aio.Admin, resource: ConfigResource, key: str) -> Setting:
    (found,) = await settings_of(admin, [resource], [key])
    return found


async def test_a_setting_of_a_topic_is_set_checked_and_unset(klamm_bootstrap: str) -> None:
    name = unique("topic")
    topic = ConfigResource.topic(name)
    async with klamm.aio.Admin(klamm_bootstrap) as admin:
        await admin.create_topic(name, 1, 1)
        before = await one(admin, topic, "segment.bytes")
        assert (before.source, before.is_default, before.type) == ("default", True, "int")
        assert before.value == before.default == "1073741824" and before.documentation
        await change(admin, [topic], {"segment.bytes": "10000000"}, validate_only=True)
        assert await one(admin, topic, "segment.bytes") == before
        await change(admin, [topic], {"segment.bytes": "10000000", "retention.ms": "1000"})
        after = await one(admin, topic, "segment.bytes")
        assert (after.value, after.source, after.is_default) == ("10000000", "topic", False)
        assert after.default == "1073741824"
        assert (await one(admin, topic, "retention.ms")).default is None, "it is that of another unit"
        await change(admin, [topic], {}, ["segment.bytes"])
        assert await one(admin, topic, "segment.bytes") == before
        with pytest.raises(BrokerError, match=r"retention\.ms"):
            await change(admin, [topic], {"retention.ms": "soon"}, validate_only=True)
        with pytest.raises(CannotDo, match=f"topic {name} has no setting retention"):
            await settings_of(admin, [topic], ["retention"])
        with pytest.raises(UnknownTopic):
            await settings_of(admin, [ConfigResource.topic("nowhere")])


async def test_settings_of_a_broker_say_what_can_be_changed(klamm_bootstrap: str) -> None:
    async with klamm.aio.Admin(klamm_bootstrap) as admin:
        settings = {each.name: each for each in await settings_of(admin, [ConfigResource.broker(1)])}
        assert settings["log.dirs"].read_only and settings["log.dirs"].source == "broker's file"
        assert not settings["log.retention.ms"].read_only
        secrets = [each for each in settings.values() if each.sensitive]
        assert secrets and all(each.value is None for each in secrets)
