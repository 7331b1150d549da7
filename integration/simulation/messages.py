"""What simulated clients ask: the version of each API that they speak.

Purpose: requests by the names that Kafka's schemas have; `integration.raw` knows how they are
written and read. Versions are the last that name topics, where ids came later. Invariant: what a
request does not name has the schema's default. What it must not know: when requests are sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from kio.static.protocol import RequestPayload

from integration import raw

_VERSIONS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "add_offsets_to_txn": 3,
        "add_partitions_to_txn": 3,
        "alter_partition_reassignments": 0,
        "create_topics": 5,
        "elect_leaders": 2,
        "end_txn": 3,
        "fetch": 12,
        "find_coordinator": 3,
        "heartbeat": 4,
        "init_producer_id": 4,
        "join_group": 6,
        "leave_group": 4,
        "list_offsets": 7,
        "metadata": 9,
        "offset_commit": 7,
        "offset_fetch": 7,
        "produce": 9,
        "sync_group": 4,
        "txn_offset_commit": 3,
    }
)
_VERSIONS_V2: Final[Mapping[str, int]] = MappingProxyType(
    {**_VERSIONS, "end_txn": 5, "produce": 12, "txn_offset_commit": 5}
)
"""With transaction.version 2 (KIP-890): partitions are added by themselves, epochs raised."""


def request(api: str, /, *, is_v2: bool = False, **fields: Any) -> RequestPayload:
    """A request; nested entities are mappings, times are in milliseconds."""
    return raw.request(api, (_VERSIONS_V2 if is_v2 else _VERSIONS)[api], **fields)
