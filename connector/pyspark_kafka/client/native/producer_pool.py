"""A pool of one idle producer and the idle connections of one transactional producer.

The next task reuses the producer, because a new producer has to connect and request a producer id.
A transactional producer is used for only one transaction, so only its connections are reused.
Invariant: a producer is reused only if all of its rows were acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark_kafka.client.native.producer_settings import ProducerSettings
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, TransactionVersion
from pyspark_kafka.wire.router import Router

if TYPE_CHECKING:
    from pyspark_kafka.client.native.leader_connections import LeaderConnections
    from pyspark_kafka.client.native.producer import NativeProducer
    from pyspark_kafka.client.native.transactional_producer import NativeTransactionalProducer

_IDLE_S_MAX: Final = 300.0


@dataclass(slots=True, kw_only=True)
class ProducerPool:
    """Lends producers, and retains the most recently returned producer and its connections."""

    router: Router
    settings: ProducerSettings
    bootstrap_servers: str
    _idle: NativeProducer | None = None
    _idle_connections: LeaderConnections | None = None
    _connections_idle_since: float = 0.0

    def lend(self) -> NativeProducer:
        """Return the idle producer, or a new one if there is none or it has been idle too long."""
        # Imported here, because planning does not need a producer.
        from pyspark_kafka.client.delivery_errors import DeliveryErrors  # noqa: PLC0415
        from pyspark_kafka.client.native.producer import NativeProducer  # noqa: PLC0415

        idle, self._idle = self._idle, None
        if idle is not None and self._is_fresh(idle.idle_since):
            idle.clear_failures()
            return idle
        if idle is not None:
            idle.end()
        errors = DeliveryErrors(
            bootstrap_servers=self.bootstrap_servers,
            record_bytes_max=self.settings.request_bytes_max,
        )
        return NativeProducer(self.router, self.settings, errors, give_back=self._take_back)

    def begin(
        self, transactional_id: str, producer: ProducerIdAndEpoch, version: TransactionVersion
    ) -> NativeTransactionalProducer:
        """Return a producer for one transaction. Reuses connections that were idle only briefly."""
        from pyspark_kafka.client.native.transactional_producer import (  # noqa: PLC0415
            NativeTransactionalProducer,
        )

        connections, self._idle_connections = self._idle_connections, None
        if connections is not None and not self._is_fresh(self._connections_idle_since):
            connections.close()
            connections = None
        return NativeTransactionalProducer.begin(
            self.router,
            self.settings,
            self.bootstrap_servers,
            transactional_id,
            producer,
            version,
            connections=connections,
            keep=self._keep_connections,
        )

    def close(self) -> None:
        """Close all idle connections."""
        self._drop_idle()
        self._drop_idle_connections()

    def _is_fresh(self, idle_since: float) -> bool:
        idle_s = self.router.clock.now() - idle_since
        return idle_s < min(_IDLE_S_MAX, self.router.idle_s_max)

    def _take_back(self, producer: NativeProducer) -> None:
        self._drop_idle()
        producer.idle_since = self.router.clock.now()
        self._idle = producer

    def _keep_connections(self, connections: LeaderConnections) -> None:
        self._drop_idle_connections()
        self._connections_idle_since = self.router.clock.now()
        self._idle_connections = connections

    def _drop_idle(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.end()

    def _drop_idle_connections(self) -> None:
        connections, self._idle_connections = self._idle_connections, None
        if connections is not None:
            connections.close()
