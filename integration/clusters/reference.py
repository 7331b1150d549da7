"""The reference broker in this process."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from broker_ref.io.cluster import Cluster
from integration.clusters import topics


class ReferenceCluster:
    """A `Cluster` of one `broker_ref` broker on an event loop of its own."""

    def __init__(self, *, configs: Mapping[str, str] | None = None) -> None:
        self._cluster = Cluster(brokers=1, configs=dict(configs or {}))
        self._cluster.start()

    @property
    def backend(self) -> str:
        return "reference"

    @property
    def version(self) -> str:
        return "broker_ref"

    @property
    def bootstrap_servers(self) -> str:
        return self._cluster.bootstrap_servers

    def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until its partitions have leaders."""
        topics.create_topic(self.bootstrap_servers, name, partitions=partitions, configs=configs)

    def stop_broker(self, broker_id: int) -> None:
        """Stop it in good order: what it has is flushed."""
        self._cluster.stop_broker(broker_id)

    def kill_broker(self, broker_id: int) -> None:
        """Refused: this backend's brokers live in the test's own process."""
        raise NotImplementedError(
            f"broker {broker_id} is part of this process: kill it with the backend "
            "reference-processes"
        )

    def start_broker(self, broker_id: int) -> None:
        """Start it again on the same port and directory."""
        self._cluster.start_broker(broker_id)

    def logs(self) -> str:
        """Nothing: the brokers log through `logging`, which pytest captures by itself."""
        return ""

    def close(self) -> None:
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
