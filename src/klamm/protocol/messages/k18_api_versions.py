"""ApiVersions, key 18: which APIs a broker serves, in which versions.

Versions 0-4, flexible from 3. The response has header version 0 in all versions, and an unknown version
is answered in version 0: a client cannot know better before it has read this.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, boolean, field, int16, int32, int64, string


class ApiVersionsRequest(Message, api_key=18, versions="0-4", flexible="3+"):
    client_software_name: str = field(string, versions="3+", ignorable=True)
    client_software_version: str = field(string, versions="3+", ignorable=True)


class ApiVersion(Struct):
    api_key: int = field(int16)
    min_version: int = field(int16)
    max_version: int = field(int16)


class SupportedFeatureKey(Struct):
    name: str = field(string, versions="3+")
    min_version: int = field(int16, versions="3+")
    max_version: int = field(int16, versions="3+")


class FinalizedFeatureKey(Struct):
    name: str = field(string, versions="3+")
    max_version_level: int = field(int16, versions="3+")
    min_version_level: int = field(int16, versions="3+")


class ApiVersionsResponse(Message, api_key=18, versions="0-4", flexible="3+"):
    error_code: int = field(int16)
    api_keys: list[ApiVersion] = field(array(ApiVersion))
    throttle_time_ms: int = field(int32, versions="1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = field(
        array(SupportedFeatureKey), versions="3+", tag=0, ignorable=True
    )
    finalized_features_epoch: int = field(int64, versions="3+", tag=1, default=-1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = field(
        array(FinalizedFeatureKey), versions="3+", tag=2, ignorable=True
    )
    zk_migration_ready: bool = field(boolean, versions="3+", tag=3, ignorable=True)
