"""A request to a broker: the version it is sent in, its bytes, and who waits for the answer. A core."""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

from klamm.client.errors import BrokerError
from klamm.client.network.addresses import BrokerAddress
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.messages.k18_api_versions import ApiVersionsResponse
from klamm.protocol.schema import VersionRange

_KEYS = frozenset(key.value for key in ApiKey)


class AnswerWaiter(Protocol):
    """Gets the answer to a request: a future, or an object with the same methods, which must not raise."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


class PreparedRequest(Protocol):
    """A request whose bytes are made already, except for the correlation id and the records."""

    @property
    def api_key(self) -> int: ...

    @property
    def version(self) -> int: ...

    def frame(self, correlation_id: int, records: bytearray | memoryview, /) -> bytes:
        """The bytes of the whole request."""

    def read(self, correlation_id: int, frame: memoryview, /) -> Any | None:
        """The result, if the frame is the usual answer to this request without a throttle time; None if the
        frame must be decoded."""


class PendingRequest:
    """A request that has no answer yet."""

    __slots__ = (
        "api_key",
        "correlation_id",
        "dead_at",
        "deadline",
        "prepared",
        "sent_at",
        "timeout",
        "version",
        "waiter",
    )

    def __init__(
        self,
        api_key: int,
        version: int,
        correlation_id: int,
        waiter: AnswerWaiter,
        sent_at: float,
        timeout: float,
        longest: float,
        prepared: PreparedRequest | None = None,
    ) -> None:
        self.prepared = prepared
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.waiter = waiter
        self.sent_at = sent_at
        self.timeout = timeout
        self.deadline = sent_at + timeout
        self.dead_at = sent_at + (timeout if timeout > longest else longest)


class CommonVersions:
    """The versions that both sides know, by API key; empty until the broker has answered ApiVersions."""

    __slots__ = ("_common",)

    def __init__(self) -> None:
        self._common: dict[int, VersionRange] = {}

    def learn(self, response: ApiVersionsResponse) -> None:
        """Take over the versions that the broker supports, as far as we know them, too."""
        for served in response.api_keys:
            ours = _our_versions(served.api_key)
            if ours is None:
                continue
            both = VersionRange(max(ours.first, served.min_version), min(ours.last, served.max_version))
            if both.first <= both.last:
                self._common[served.api_key] = both

    def newest(self, api_key: int, max_version: int | None, address: BrokerAddress) -> int:
        """The newest common version up to `max_version`; UnsupportedRequest if there is none."""
        common = self._common.get(api_key)
        if common is not None:
            newest = common.last if max_version is None else min(common.last, max_version)
            if newest >= common.first:
                return newest
        raise BrokerError.of(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{ApiKey(api_key).title} to {address}",
            "it does not know the request" if common is None else f"it knows versions {common}",
        )

    def reaches(self, api_key: int, version: int) -> bool:
        """True if a request can be sent in `version` or a newer one."""
        common = self._common.get(api_key)
        return common is not None and common.last >= version

    def has(self, api_key: int, version: int) -> bool:
        """True if a request can be sent in exactly `version`."""
        common = self._common.get(api_key)
        return common is not None and common.first <= version <= common.last


@cache
def _our_versions(api_key: int) -> VersionRange | None:
    return API_VERSIONS[ApiKey(api_key)].accepted if api_key in _KEYS else None
