"""The backend `reference`: the reference cluster in this process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import broker_ref
from integration.clusters import topics


def settings(brokers: int) -> dict[str, str]:
    """Return the configs that a test cluster of this size needs, as for Apache Kafka."""
    return {
        "offsets.topic.replication.factor": str(min(3, brokers)),
        "offsets.topic.num.partitions": "5",
        "transaction.state.log.replication.factor": str(min(3, brokers)),
        "transaction.state.log.min.isr": str(min(2, brokers)),
        "transaction.state.log.num.partitions": "5",
        "group.initial.rebalance.delay.ms": "0",
        # Tests read records with old timestamps.
        "log.retention.check.interval.ms": str(6 * 60 * 60 * 1000),
    }


class ReferenceCluster:
    """A `Cluster` of `broker_ref` brokers and their controller on their own event loop."""

    def __init__(
        self,
        *,
        brokers: int = 1,
        configs: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
        features: Mapping[str, int] | None = None,
    ) -> None:
        self._broker_ids = tuple(range(1, brokers + 1))
        self._paused: set[int] = set()
        self._temporary = tempfile.TemporaryDirectory(prefix="broker_ref-")
        self._cluster = broker_ref.Cluster(
            brokers=brokers,
            data=self._temporary.name,
            configs={**settings(brokers), **(configs or {})},
            racks=racks,
            features=features,
        )
        try:
            self._cluster.start()
        except BaseException:
            self._temporary.cleanup()
            raise

    @property
    def backend(self) -> str:
        return "reference"

    @property
    def version(self) -> str:
        return "broker_ref"

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return self._broker_ids

    @property
    def bootstrap_servers(self) -> str:
        return self._cluster.bootstrap_servers

    def address(self, broker_id: int) -> str:
        """Return `127.0.0.1:PORT`."""
        self._check_id(broker_id)
        return self._cluster.address(broker_id)

    def data_directory(self, broker_id: int) -> Path:
        """Return the broker's log directory."""
        self._check_id(broker_id)
        return self._cluster.data_directory(broker_id)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and wait until the leaders of its partitions serve them."""
        topics.create_topic(
            self._any_address(),
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            assignment=assignment,
            configs=configs,
        )

    def stop_broker(self, broker_id: int) -> None:
        """Shut it down cleanly: it hands over its leaderships and flushes."""
        self._check_id(broker_id)
        self._cluster.stop_broker(broker_id)
        self._paused.discard(broker_id)

    def kill_broker(self, broker_id: int) -> None:
        """End it abruptly, without flush or handover."""
        self._check_id(broker_id)
        self._cluster.kill_broker(broker_id)
        self._paused.discard(broker_id)

    def start_broker(self, broker_id: int) -> None:
        """Restart it on the same port and directory."""
        self._check_id(broker_id)
        self._cluster.start_broker(broker_id)

    def pause_broker(self, broker_id: int) -> None:
        """Pause it: it processes nothing, and its connections stay open."""
        self._check_id(broker_id)
        self._cluster.pause_broker(broker_id)
        self._paused.add(broker_id)

    def resume_broker(self, broker_id: int) -> None:
        """Resume it."""
        self._check_id(broker_id)
        if broker_id not in self._paused:
            raise ValueError(f"broker {broker_id} is not paused")
        self._cluster.resume_broker(broker_id)
        self._paused.discard(broker_id)

    def stop_controller(self) -> None:
        """Shut it down cleanly."""
        self._cluster.stop_controller()

    def kill_controller(self) -> None:
        """End it abruptly, without flush."""
        self._cluster.kill_controller()

    def start_controller(self) -> None:
        """Restart it on the same port and directory."""
        self._cluster.start_controller()

    def logs(self) -> str:
        """Return nothing: the brokers use `logging`, which pytest captures."""
        return ""

    def close(self) -> None:
        self._cluster.close()
        self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _any_address(self) -> str:
        for broker_id in self._broker_ids:
            address = self.address(broker_id)
            if broker_id not in self._paused and topics.is_listening(address):
                return address
        raise ValueError("no broker is running: start one first")

    def _check_id(self, broker_id: int) -> None:
        if broker_id not in self._broker_ids:
            known = ", ".join(map(str, self._broker_ids))
            raise ValueError(f"there is no broker {broker_id} in this cluster; it has {known}")
