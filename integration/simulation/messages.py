"""The requests of simulated clients, and the version of each API that they use.

Requests are built with the field names of Kafka's schemas and encoded by `integration.raw`. If
later versions of an API use topic ids, the last version with topic names is used. Invariant:
omitted fields have the schema's defaults.
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
        "update_features": 1,
    }
)
_VERSIONS_V2: Final[Mapping[str, int]] = MappingProxyType(
    {**_VERSIONS, "end_txn": 5, "produce": 12, "txn_offset_commit": 5}
)
"""The versions with transaction.version 2 (KIP-890): implicit AddPartitions and epoch bumps."""


def request(api: str, /, *, is_v2: bool = False, **fields: Any) -> RequestPayload:
    """Return a request. Nested entities are mappings, and times are in milliseconds."""
    return raw.request(api, (_VERSIONS_V2 if is_v2 else _VERSIONS)[api], **fields)
