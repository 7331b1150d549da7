"""The load: numbered records into the source topic, until told to stop.

Invariant: paced, and slow while the query does not run, so that it keeps up; every record is
confirmed before the feed has ended. A record that is there twice does no harm: each is known by its place. What it must
not know: the query.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import confluent_kafka

_FLUSH_TIMEOUT_S: Final = 120.0
_TICK_S: Final = 0.05


class Feed:
    """A thread that writes `records_per_second` where `is_read`, else few, until `stop`."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        records_per_second: int,
        is_read: Callable[[], bool],
    ) -> None:
        self._topic = topic
        self._is_read = is_read
        self._per_tick = max(1, round(records_per_second * _TICK_S))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._failures: list[str] = []
        self._confirmed = 0
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "acks": "all",
                "message.timeout.ms": int(_FLUSH_TIMEOUT_S * 1000),
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1000,
                "sticky.partitioning.linger.ms": 0,
                "log_level": 2,  # that a broker is gone is no news here
            }
        )
        self._thread.start()

    @property
    def confirmed(self) -> int:
        """Records that brokers have confirmed."""
        return self._confirmed

    def stop(self) -> None:
        """Write no more, and return when all is confirmed; raises `AssertionError` where not."""
        self._stopped.set()
        self._thread.join()
        left = self._producer.flush(_FLUSH_TIMEOUT_S)
        assert left == 0, f"{left} records of the feed were not confirmed"
        assert not self._failures, self._failures[:3]

    def _run(self) -> None:
        number = 0
        while not self._stopped.wait(_TICK_S):
            for _ in range(self._per_tick if self._is_read() else 1):
                try:
                    self._producer.produce(self._topic, b"%d" % number, on_delivery=self._told)
                except BufferError:
                    break  # nobody takes them at the moment
                number += 1
            self._producer.poll(0)

    def _told(self, error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        if error is None:
            self._confirmed += 1
        else:
            self._failures.append(str(error))
