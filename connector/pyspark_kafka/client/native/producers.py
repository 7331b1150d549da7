"""Producers of the engine `native`, one task after the other.

Purpose: lend a producer, and keep it for the next task, since a new one has to ask for an id and to
connect. Invariant: only a producer whose rows are all confirmed is lent again. What it must not
know: Spark, how producers write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark_kafka.client.native.producer_settings import ProducerSettings
from pyspark_kafka.wire.router import Router

if TYPE_CHECKING:
    from pyspark_kafka.client.native.producer import NativeProducer

_IDLE_S_MAX: Final = 300.0


@dataclass(slots=True, kw_only=True)
class NativeProducers:
    """Lends producers, and keeps the one that was given back with its id and connections."""

    router: Router
    settings: ProducerSettings
    bootstrap_servers: str
    _idle: NativeProducer | None = None

    def lend(self) -> NativeProducer:
        """The idle producer if it is fresh, else a new one."""
        # Not every process that has a client writes, and loading takes longer than what those do.
        from pyspark_kafka.client.delivery_faults import DeliveryFaults  # noqa: PLC0415
        from pyspark_kafka.client.native.producer import NativeProducer  # noqa: PLC0415

        idle, self._idle = self._idle, None
        if idle is not None and self.router.clock.now() - idle.idle_since < _IDLE_S_MAX:
            idle.forget_trouble()
            return idle
        if idle is not None:
            idle.end()
        faults = DeliveryFaults(
            bootstrap_servers=self.bootstrap_servers,
            record_bytes_max=self.settings.request_bytes_max,
        )
        return NativeProducer(self.router, self.settings, faults, give_back=self._take_back)

    def close(self) -> None:
        """Close the connections of the idle producer."""
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.end()

    def _take_back(self, producer: NativeProducer) -> None:
        self.close()
        producer.idle_since = self.router.clock.now()
        self._idle = producer
