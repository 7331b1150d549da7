"""Which version of each API we speak, and which one with a given broker.

Purpose: the table, and the choice of the highest version that both sides have. Invariant: a first
version here has every field that we rely on, so that no field is dropped silently in an old one.
What it must not know: messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from pyspark_kafka.errors import UnsupportedVersionError


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
        """As Kafka's documentation writes it: `ListOffsets`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedVersions:
    """Versions `first` to `last`, in the flexible encoding (KIP-482) from `flexible_from` on.

    From `throttled_from` on the broker answers at once and it is the client that has to wait for
    the throttle time (KIP-219; `shouldClientThrottle` of Kafka's response classes).
    """

    first: int
    last: int
    throttled_from: int
    flexible_from: int

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from


SUPPORTED_VERSIONS: Final[Mapping[Api, SupportedVersions]] = {
    # 3: record batches v2. 13: topics by id. From 11 on the difference is one for transactions.
    Api.PRODUCE: SupportedVersions(first=3, last=13, throttled_from=6, flexible_from=9),
    # 4: isolation level and record batches v2. 13: topics by id. 18 says nothing to consumers.
    Api.FETCH: SupportedVersions(first=4, last=17, throttled_from=8, flexible_from=12),
    Api.LIST_OFFSETS: SupportedVersions(
        first=2, last=10, throttled_from=3, flexible_from=6
    ),  # 2: isolation level
    Api.METADATA: SupportedVersions(
        first=4, last=13, throttled_from=6, flexible_from=9
    ),  # 4: no creation by asking
    Api.OFFSET_COMMIT: SupportedVersions(
        first=2, last=9, throttled_from=4, flexible_from=8
    ),  # 10 has topics by id alone
    Api.OFFSET_FETCH: SupportedVersions(
        first=2, last=9, throttled_from=4, flexible_from=6
    ),  # 10 has topics by id alone
    Api.FIND_COORDINATOR: SupportedVersions(
        first=1, last=5, throttled_from=2, flexible_from=3
    ),  # 1: kinds of keys
    Api.API_VERSIONS: SupportedVersions(
        first=0, last=3, throttled_from=2, flexible_from=3
    ),  # 3: finalized features
    Api.CREATE_TOPICS: SupportedVersions(first=2, last=7, throttled_from=3, flexible_from=5),
    # 3: expects an epoch. 6: two-phase commit, which brokers have where unstable versions are on.
    Api.INIT_PRODUCER_ID: SupportedVersions(first=0, last=6, throttled_from=1, flexible_from=2),
    Api.ADD_PARTITIONS_TO_TXN: SupportedVersions(
        first=0, last=3, throttled_from=1, flexible_from=3
    ),  # 4 is of brokers
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
    ),  # 2: a pattern
}
_SINCE: Final[Mapping[Api, str]] = {
    Api.DESCRIBE_TRANSACTIONS: "3.0",
    Api.LIST_TRANSACTIONS: "3.0",
}
"""The release of Kafka that an API came with, where that was after record batches v2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerVersions:
    """What one broker has said it speaks: first and last version by API key.

    `features` are the finalized ones of its cluster (KIP-584) by name, each with its level.
    """

    broker: str
    ranges: Mapping[int, tuple[int, int]]
    features: Mapping[str, int] = field(default_factory=dict)

    def choose(self, api: Api, *, at_least: int | None = None, at_most: int | None = None) -> int:
        """The highest version of both sides; `at_least` and `at_most` are further bounds.

        Raises `UnsupportedVersionError` naming both ranges.
        """
        spoken = SUPPORTED_VERSIONS[api]
        first = spoken.first if at_least is None else max(spoken.first, at_least)
        last = spoken.last if at_most is None else min(spoken.last, at_most)
        if api not in self.ranges:
            raise UnsupportedVersionError(
                f"{self.broker} does not have {api.title}, of which this client speaks versions "
                f"{first} to {last}: check that it is a Kafka broker ({_SINCE.get(api, '0.11')} or "
                "later)"
            )
        theirs_first, theirs_last = self.ranges[api]
        chosen = min(last, theirs_last)
        if chosen < max(first, theirs_first):
            raise UnsupportedVersionError(
                f"{self.broker} has {api.title} in versions {theirs_first} to {theirs_last}, and "
                f"this client speaks {first} to {last}: upgrade the older one, or set "
                "'engine' to 'librdkafka'"
            )
        return chosen
