"""Who a broker is: `meta.properties`, in Kafka's format, at the root of its storage.

Purpose: give a directory its cluster id and node id once, and refuse to start another node on it.
Invariant: the file is written before anything else is. What it must not know: how ids are used.
Source: Kafka's `MetaProperties` (version 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.log.errors import LogError
from broker_ref.log.storage import Storage
from broker_ref.protocol.identifiers import random_uuid, uuid_text

META_PROPERTIES_FILE: Final = "meta.properties"


class WrongDirectoryError(LogError):
    """The data directory belongs to another broker or cluster; says to which."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.kafka_storage_error, message)


def claim_directory(
    config: BrokerConfig, *, storage: Storage, random_bytes: Callable[[int], bytes]
) -> str:
    """The cluster id of this storage, made where it is new.

    WrongDirectoryError where it is another node's or another cluster's.
    """
    if storage.exists(META_PROPERTIES_FILE):
        found = _parse(storage.read(META_PROPERTIES_FILE).decode())
        _require(found, "node.id", str(config.node_id))
        if config.cluster_id is not None:
            _require(found, "cluster.id", config.cluster_id)
        return found["cluster.id"]
    cluster_id = config.cluster_id
    if cluster_id is None:
        cluster_id = uuid_text(random_uuid(random_bytes))
    properties = {
        "version": "1",
        "cluster.id": cluster_id,
        "node.id": str(config.node_id),
        "directory.id": uuid_text(random_uuid(random_bytes)),
    }
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    storage.write_atomically(META_PROPERTIES_FILE, text.encode())
    return cluster_id


def _require(found: dict[str, str], name: str, expected: str) -> None:
    if found.get(name) != expected:
        raise WrongDirectoryError(
            f"{META_PROPERTIES_FILE} says that this data directory has {name}={found.get(name)}, "
            f"but the broker is configured with {name}={expected}. Use that, or another directory."
        )


def _parse(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {name.strip(): value.strip() for name, separator, value in pairs if separator}
