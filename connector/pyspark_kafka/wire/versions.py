"""Defines the API versions that this client supports, and chooses a version for each broker.

The first supported version of each API contains all fields that this client requires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from pyspark_kafka.errors import UnsupportedVersionError, sentence


class Api(IntEnum):
    """Kafka's API keys, with the names that Kafka uses."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66

    @property
    def title(self) -> str:
        """Return the name of this API in Kafka's documentation, for example `ListOffsets`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedVersions:
    """The versions `first` to `last` of an API.

    Versions from `flexible_from` on use the flexible encoding (KIP-482). In versions from
    `throttled_from` on, a broker responds immediately, and the client waits for the throttle time
    (KIP-219; `shouldClientThrottle` in Kafka's response classes).
    """

    first: int
    last: int
    throttled_from: int
    flexible_from: int

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from


SUPPORTED_VERSIONS: Final[Mapping[Api, SupportedVersions]] = {
    # 3: message format v2. 11 and 12: transactions. 13: topic ids instead of names.
    Api.PRODUCE: SupportedVersions(first=3, last=13, throttled_from=6, flexible_from=9),
    # 4: isolation level, message format v2. 13: topic ids instead of names. 18 is for replicas.
    Api.FETCH: SupportedVersions(first=4, last=17, throttled_from=8, flexible_from=12),
    Api.LIST_OFFSETS: SupportedVersions(
        first=2, last=10, throttled_from=3, flexible_from=6
    ),  # 2: isolation level
    Api.METADATA: SupportedVersions(
        first=4, last=13, throttled_from=6, flexible_from=9
    ),  # 4: allow_auto_topic_creation
    Api.OFFSET_COMMIT: SupportedVersions(
        first=2, last=9, throttled_from=4, flexible_from=8
    ),  # 10 has topic ids instead of names
    Api.OFFSET_FETCH: SupportedVersions(
        first=2, last=9, throttled_from=4, flexible_from=6
    ),  # 10 has topic ids instead of names
    Api.FIND_COORDINATOR: SupportedVersions(
        first=1, last=5, throttled_from=2, flexible_from=3
    ),  # 1: key types
    # 1: SaslAuthenticate requests follow. Neither API is throttled.
    Api.SASL_HANDSHAKE: SupportedVersions(first=1, last=1, throttled_from=1, flexible_from=2),
    Api.API_VERSIONS: SupportedVersions(
        first=0, last=3, throttled_from=2, flexible_from=3
    ),  # 3: finalized features
    Api.CREATE_TOPICS: SupportedVersions(first=2, last=7, throttled_from=3, flexible_from=5),
    # 3: expected producer epoch. 6 is for two-phase commit (KIP-939) and is unstable.
    Api.INIT_PRODUCER_ID: SupportedVersions(first=0, last=5, throttled_from=1, flexible_from=2),
    Api.ADD_PARTITIONS_TO_TXN: SupportedVersions(
        first=0, last=3, throttled_from=1, flexible_from=3
    ),  # 4 is for brokers
    Api.ADD_OFFSETS_TO_TXN: SupportedVersions(first=0, last=4, throttled_from=1, flexible_from=3),
    # 5: transaction version 2 (KIP-890), also in TxnOffsetCommit.
    Api.END_TXN: SupportedVersions(first=0, last=5, throttled_from=1, flexible_from=3),
    Api.TXN_OFFSET_COMMIT: SupportedVersions(first=0, last=5, throttled_from=1, flexible_from=3),
    Api.DESCRIBE_CONFIGS: SupportedVersions(first=1, last=4, throttled_from=2, flexible_from=4),
    # 1: session lifetime (KIP-368)
    Api.SASL_AUTHENTICATE: SupportedVersions(first=0, last=2, throttled_from=0, flexible_from=2),
    Api.DESCRIBE_TRANSACTIONS: SupportedVersions(
        first=0, last=0, throttled_from=0, flexible_from=0
    ),
    Api.LIST_TRANSACTIONS: SupportedVersions(
        first=0, last=2, throttled_from=0, flexible_from=0
    ),  # 2: pattern
}
_SINCE: Final[Mapping[Api, str]] = {
    Api.DESCRIBE_TRANSACTIONS: "3.0",
    Api.LIST_TRANSACTIONS: "3.0",
}
"""The Kafka releases that introduced APIs newer than message format v2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerVersions:
    """The API versions that a broker supports, from its ApiVersions response.

    `ranges` contains the first and the last version of each API, by API key. `features` contains
    the levels of the cluster's finalized features, by name (KIP-584).
    """

    broker: str
    ranges: Mapping[int, tuple[int, int]]
    features: Mapping[str, int] = field(default_factory=dict)

    def choose(self, api: Api, *, at_least: int | None = None, at_most: int | None = None) -> int:
        """Return the highest version from `at_least` to `at_most` that client and broker support.

        Raises `UnsupportedVersionError` if there is no such version.
        """
        supported = SUPPORTED_VERSIONS[api]
        first = supported.first if at_least is None else max(supported.first, at_least)
        last = supported.last if at_most is None else min(supported.last, at_most)
        if api not in self.ranges:
            raise UnsupportedVersionError(
                f"{sentence(self.broker)} does not support {api.title}. This client requires a "
                f"version from {first} to {last}.",
                advice=(
                    "Check that the address belongs to a broker that runs Kafka "
                    f"{_SINCE.get(api, '0.11')} or later."
                ),
            )
        broker_first, broker_last = self.ranges[api]
        chosen = min(last, broker_last)
        if chosen < max(first, broker_first):
            raise UnsupportedVersionError(
                f"{sentence(self.broker)} supports {api.title} versions {broker_first} to "
                f"{broker_last}, but this client requires a version from {first} to {last}.",
                advice="Upgrade the broker or this package, whichever is older, or set 'engine' to "
                "'librdkafka'.",
            )
        return chosen
