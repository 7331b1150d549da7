"""The supported versions of each API, and the choice for a broker.

Purpose: the table, and the highest version that both sides support. Invariant: the first version of
an API has every field that this client relies on. What it must not know: messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from pyspark_kafka.errors import UnsupportedVersionError, sentence


class Api(IntEnum):
    """Kafka's API keys; the names are Kafka's."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66

    @property
    def title(self) -> str:
        """The name in Kafka's documentation: `ListOffsets`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedVersions:
    """Versions `first` to `last`, in the flexible encoding (KIP-482) from `flexible_from` on.

    From `throttled_from` on the broker responds at once and the client waits for the throttle time
    (KIP-219; `shouldClientThrottle` of Kafka's response classes).
    """

    first: int
    last: int
    throttled_from: int
    flexible_from: int

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from


SUPPORTED_VERSIONS: Final[Mapping[Api, SupportedVersions]] = {
    # 3: record batches v2. 13: topics by id. Versions 11 and 12 are for transactions.
    Api.PRODUCE: SupportedVersions(first=3, last=13, throttled_from=6, flexible_from=9),
    # 4: isolation level and record batches v2. 13: topics by id. 18 is for replicas.
    Api.FETCH: SupportedVersions(first=4, last=17, throttled_from=8, flexible_from=12),
    Api.LIST_OFFSETS: SupportedVersions(
        first=2, last=10, throttled_from=3, flexible_from=6
    ),  # 2: isolation level
    Api.METADATA: SupportedVersions(
        first=4, last=13, throttled_from=6, flexible_from=9
    ),  # 4: allow_auto_topic_creation
    Api.OFFSET_COMMIT: SupportedVersions(
        first=2, last=9, throttled_from=4, flexible_from=8
    ),  # 10 has topics by id only
    Api.OFFSET_FETCH: SupportedVersions(
        first=2, last=9, throttled_from=4, flexible_from=6
    ),  # 10 has topics by id only
    Api.FIND_COORDINATOR: SupportedVersions(
        first=1, last=5, throttled_from=2, flexible_from=3
    ),  # 1: key types
    Api.API_VERSIONS: SupportedVersions(
        first=0, last=3, throttled_from=2, flexible_from=3
    ),  # 3: finalized features
    Api.CREATE_TOPICS: SupportedVersions(first=2, last=7, throttled_from=3, flexible_from=5),
    # 3: expected epoch. 6: two-phase commit, in brokers that enable unstable versions.
    Api.INIT_PRODUCER_ID: SupportedVersions(first=0, last=6, throttled_from=1, flexible_from=2),
    Api.ADD_PARTITIONS_TO_TXN: SupportedVersions(
        first=0, last=3, throttled_from=1, flexible_from=3
    ),  # 4 is for brokers
    Api.ADD_OFFSETS_TO_TXN: SupportedVersions(first=0, last=4, throttled_from=1, flexible_from=3),
    # 5: transactions of version 2 (KIP-890), as in TxnOffsetCommit.
    Api.END_TXN: SupportedVersions(first=0, last=5, throttled_from=1, flexible_from=3),
    Api.TXN_OFFSET_COMMIT: SupportedVersions(first=0, last=5, throttled_from=1, flexible_from=3),
    Api.DESCRIBE_CONFIGS: SupportedVersions(first=1, last=4, throttled_from=2, flexible_from=4),
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
"""The Kafka release that added an API, if later than record batches v2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerVersions:
    """The ApiVersions response of a broker: first and last version by API key.

    `features` are the finalized features of the cluster with their levels (KIP-584).
    """

    broker: str
    ranges: Mapping[int, tuple[int, int]]
    features: Mapping[str, int] = field(default_factory=dict)

    def choose(self, api: Api, *, at_least: int | None = None, at_most: int | None = None) -> int:
        """Return the highest common version between `at_least` and `at_most`.

        Raises `UnsupportedVersionError` with both ranges.
        """
        supported = SUPPORTED_VERSIONS[api]
        first = supported.first if at_least is None else max(supported.first, at_least)
        last = supported.last if at_most is None else min(supported.last, at_most)
        if api not in self.ranges:
            raise UnsupportedVersionError(
                f"{sentence(self.broker)} does not support {api.title}; this client needs a "
                f"version from {first} to {last}.",
                advice=(
                    f"Check that it is a Kafka broker, release {_SINCE.get(api, '0.11')} or later."
                ),
            )
        broker_first, broker_last = self.ranges[api]
        chosen = min(last, broker_last)
        if chosen < max(first, broker_first):
            raise UnsupportedVersionError(
                f"{sentence(self.broker)} supports {api.title} versions {broker_first} to "
                f"{broker_last}, but this client needs one from {first} to {last}.",
                advice="Upgrade the older one of both, or set 'engine' to 'librdkafka'.",
            )
        return chosen
