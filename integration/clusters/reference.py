"""The `reference` backend, which runs the reference cluster in this process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import broker_ref
from broker_ref.controller.scram import parse_scram_argument
from integration.clusters import topics
from integration.clusters.base import secured_listeners

if TYPE_CHECKING:
    from integration.clusters.security import SecuredListeners, Security


def settings(brokers: int) -> dict[str, str]:
    """Return the configs that a test cluster with this number of brokers requires."""
    return {
        "offsets.topic.replication.factor": str(min(3, brokers)),
        "offsets.topic.num.partitions": "5",
        "transaction.state.log.replication.factor": str(min(3, brokers)),
        "transaction.state.log.min.isr": str(min(2, brokers)),
        "transaction.state.log.num.partitions": "5",
        "group.initial.rebalance.delay.ms": "0",
        # Tests read records with old timestamps, so retention must not run during a test.
        "log.retention.check.interval.ms": str(6 * 60 * 60 * 1000),
    }


class ReferenceCluster:
    """A cluster of `broker_ref` nodes that run in this process, on their own event loop."""

    def __init__(
        self,
        *,
        brokers: int = 1,
        configs: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
        features: Mapping[str, int] | None = None,
        security: Security | None = None,
    ) -> None:
        self._broker_ids = tuple(range(1, brokers + 1))
        self._paused: set[int] = set()
        self._temporary = tempfile.TemporaryDirectory(prefix="broker_ref-")
        self._secured = secured_listeners(security, Path(self._temporary.name))
        configs = {**settings(brokers), **(configs or {})}
        credentials: list[str] = []
        if self._secured is not None:
            configs |= self._secured.configs_with_free_ports()
            credentials = self._secured.scram_arguments()
        self._cluster = broker_ref.Cluster(
            brokers=brokers,
            data=self._temporary.name,
            configs=configs,
            racks=racks,
            features=features,
            scram_credentials=[
                parse_scram_argument(each, random_bytes=os.urandom) for each in credentials
            ],
        )
        try:
            self._cluster.start()
        except BaseException:
            self._temporary.cleanup()
            raise
        for broker_id in self._broker_ids if self._secured is not None else ():
            self.secured.set_ports(broker_id, self._secured_ports(broker_id))

    def _secured_ports(self, broker_id: int) -> list[int]:
        addresses = [
            self._cluster.address(broker_id, position)
            for position, _ in enumerate(self.secured.names, start=1)
        ]
        return [int(address.rpartition(":")[2]) for address in addresses]

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

    @property
    def secured(self) -> SecuredListeners:
        assert self._secured is not None, "the cluster has no secured listeners"
        return self._secured

    def address(self, broker_id: int) -> str:
        """Return the address of a broker, `127.0.0.1:PORT`."""
        self._check_id(broker_id)
        return self._cluster.address(broker_id)

    def data_directory(self, broker_id: int) -> Path:
        """Return the log directory of a broker."""
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
        """Create a topic and wait until its partition leaders serve requests."""
        topics.create_topic(
            self._any_address(),
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            assignment=assignment,
            configs=configs,
        )

    def stop_broker(self, broker_id: int) -> None:
        """Shut down a broker cleanly.

        The broker transfers the leadership of its partitions and flushes its logs.
        """
        self._check_id(broker_id)
        self._cluster.stop_broker(broker_id)
        self._paused.discard(broker_id)

    def kill_broker(self, broker_id: int) -> None:
        """Stop a broker abruptly, without a flush or a controlled shutdown."""
        self._check_id(broker_id)
        self._cluster.kill_broker(broker_id)
        self._paused.discard(broker_id)

    def start_broker(self, broker_id: int) -> None:
        """Restart a broker with the same port and directory."""
        self._check_id(broker_id)
        self._cluster.start_broker(broker_id)

    def pause_broker(self, broker_id: int) -> None:
        """Pause a broker. Its connections stay open, but it processes no requests."""
        self._check_id(broker_id)
        self._cluster.pause_broker(broker_id)
        self._paused.add(broker_id)

    def resume_broker(self, broker_id: int) -> None:
        """Resume a paused broker."""
        self._check_id(broker_id)
        if broker_id not in self._paused:
            raise ValueError(f"broker {broker_id} is not paused")
        self._cluster.resume_broker(broker_id)
        self._paused.discard(broker_id)

    def stop_controller(self) -> None:
        """Shut down the controller cleanly."""
        self._cluster.stop_controller()

    def kill_controller(self) -> None:
        """Stop the controller abruptly, without a flush."""
        self._cluster.kill_controller()

    def start_controller(self) -> None:
        """Restart the controller with the same port and directory."""
        self._cluster.start_controller()

    def logs(self) -> str:
        """Return an empty string, because the brokers use `logging`, which pytest captures."""
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
            raise ValueError(f"the cluster has no broker {broker_id}; its brokers are {known}")
