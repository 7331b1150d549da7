"""Who a broker is: `meta.properties`, in Kafka's format, at the root of its storage.

Purpose: give a directory its cluster id and node id once, and refuse to start another node on it.
Invariant: a directory that has the file has all that a broker needs, for it is written last when
the directory is new. What it must not know: how ids are used.
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


class DamagedIdentityError(LogError):
    """`meta.properties` cannot be read; says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            ErrorCode.kafka_storage_error,
            f"{META_PROPERTIES_FILE} is damaged: {reason}. Restore it from a copy.",
        )


def known_cluster_id(config: BrokerConfig, *, storage: Storage) -> str | None:
    """The cluster id of this storage; None where it is new.

    WrongDirectoryError where it is another node's or another cluster's, DamagedIdentityError.
    """
    if not storage.exists(META_PROPERTIES_FILE):
        return None
    found = _parse(storage.read(META_PROPERTIES_FILE))
    _require(found, "node.id", str(config.node_id))
    if config.cluster_id is not None:
        _require(found, "cluster.id", config.cluster_id)
    return found["cluster.id"]


def claim_directory(
    config: BrokerConfig, *, storage: Storage, random_bytes: Callable[[int], bytes]
) -> str:
    """Make a new storage this node's; the cluster id, a new one where none is configured."""
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
    if found[name] != expected:
        raise WrongDirectoryError(
            f"{META_PROPERTIES_FILE} says that this data directory has {name}={found[name]}, "
            f"but the broker is configured with {name}={expected}. Use that, or another directory."
        )


def _parse(data: bytes) -> dict[str, str]:
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise DamagedIdentityError(f"it is no text ({error})") from error
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    found = {name.strip(): value.strip() for name, separator, value in pairs if separator}
    for name in ("cluster.id", "node.id"):
        if not found.get(name):
            raise DamagedIdentityError(f"it has no {name}")
    return found
