"""A broker's identity: the `meta.properties` file in its data directory, in Kafka's format.

The file binds a data directory to one cluster id and one node id, so no other node can use the
directory. The broker writes `meta.properties` last. Therefore, a directory that contains this file
is completely initialized. Source: `org.apache.kafka.metadata.properties.MetaProperties`.
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
    """The data directory belongs to another broker or cluster."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.kafka_storage_error, message)


class DamagedIdentityError(LogError):
    """The `meta.properties` file is corrupt."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            ErrorCode.kafka_storage_error,
            f"{META_PROPERTIES_FILE} is corrupt: {reason}. Restore it from a backup.",
        )


def known_cluster_id(config: BrokerConfig, *, storage: Storage) -> str | None:
    """Return the cluster id of a data directory, or None if the directory is new.

    Raises: WrongDirectoryError if the directory belongs to another node or cluster, or
    DamagedIdentityError if `meta.properties` is corrupt.
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
    """Assign a new data directory to this node and return the cluster id.

    If the config does not contain a cluster id, a new id is generated.
    """
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
            f"{META_PROPERTIES_FILE} in this data directory contains {name}={found[name]}, but the "
            f"broker is configured with {name}={expected}. Change the config or use another "
            "directory."
        )


def _parse(data: bytes) -> dict[str, str]:
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise DamagedIdentityError(f"the file is not valid UTF-8 ({error})") from error
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    found = {name.strip(): value.strip() for name, separator, value in pairs if separator}
    for name in ("cluster.id", "node.id"):
        if not found.get(name):
            raise DamagedIdentityError(f"{name} is missing")
    return found
