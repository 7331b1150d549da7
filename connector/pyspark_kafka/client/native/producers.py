"""Producers of the engine `native`, one task after the other.

Purpose: lend a producer, and keep it for the next task, since a new one has to ask for an id and to
connect; a producer of a transaction is for that one alone, and its connections are kept. Invariant:
only what belonged to a producer whose rows are all confirmed is lent again. What it must not know:
Spark, how producers write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark_kafka.client.native.producer_settings import ProducerSettings
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, TransactionVersion
from pyspark_kafka.wire.router import Router

if TYPE_CHECKING:
    from pyspark_kafka.client.native.leader_links import LeaderLinks
    from pyspark_kafka.client.native.producer import NativeProducer
    from pyspark_kafka.client.native.transactional_producer import NativeTransactionalProducer

_IDLE_S_MAX: Final = 300.0


@dataclass(slots=True, kw_only=True)
class NativeProducers:
    """Lends producers, and keeps the one that was given back with its id and connections."""

    router: Router
    settings: ProducerSettings
    bootstrap_servers: str
    _idle: NativeProducer | None = None
    _idle_links: LeaderLinks | None = None
    _links_idle_since: float = 0.0

    def lend(self) -> NativeProducer:
        """The idle producer if it is fresh, else a new one."""
        # Planning lends none, and does not wait for what a producer loads.
        from pyspark_kafka.client.delivery_errors import DeliveryErrors  # noqa: PLC0415
        from pyspark_kafka.client.native.producer import NativeProducer  # noqa: PLC0415

        idle, self._idle = self._idle, None
        if idle is not None and self._is_fresh(idle.idle_since):
            idle.forget_trouble()
            return idle
        if idle is not None:
            idle.end()
        faults = DeliveryErrors(
            bootstrap_servers=self.bootstrap_servers,
            record_bytes_max=self.settings.request_bytes_max,
        )
        return NativeProducer(self.router, self.settings, faults, give_back=self._take_back)

    def begin(
        self, transactional_id: str, producer: ProducerIdAndEpoch, version: TransactionVersion
    ) -> NativeTransactionalProducer:
        """A producer for one transaction, with the connections of the one before if they are fresh."""
        from pyspark_kafka.client.native.transactional_producer import (  # noqa: PLC0415
            NativeTransactionalProducer,
        )

        links, self._idle_links = self._idle_links, None
        if links is not None and not self._is_fresh(self._links_idle_since):
            links.close()
            links = None
        return NativeTransactionalProducer.begin(
            self.router,
            self.settings,
            self.bootstrap_servers,
            transactional_id,
            producer,
            version,
            links=links,
            keep=self._keep_links,
        )

    def close(self) -> None:
        """Close all connections that are idle."""
        self._drop_idle()
        self._drop_idle_links()

    def _is_fresh(self, idle_since: float) -> bool:
        idle_s = self.router.clock.now() - idle_since
        return idle_s < min(_IDLE_S_MAX, self.router.idle_s_max)

    def _take_back(self, producer: NativeProducer) -> None:
        self._drop_idle()
        producer.idle_since = self.router.clock.now()
        self._idle = producer

    def _keep_links(self, links: LeaderLinks) -> None:
        self._drop_idle_links()
        self._links_idle_since = self.router.clock.now()
        self._idle_links = links

    def _drop_idle(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.end()

    def _drop_idle_links(self) -> None:
        links, self._idle_links = self._idle_links, None
        if links is not None:
            links.close()
