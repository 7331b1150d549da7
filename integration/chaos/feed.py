"""A thread that writes numbered records to the source topic until `stop` is called.

Invariant: the thread writes more slowly while the query is not running, so the query can keep up.
When the thread ends, all records have been acknowledged. Duplicates in the source do not matter,
because the oracle identifies records by partition and offset.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import confluent_kafka

_FLUSH_TIMEOUT_S: Final = 120.0
_TICK_S: Final = 0.05


class Feed:
    """A thread that writes records to the source topic.

    It writes `records_per_second` records per second while `is_read()` returns true. Otherwise, it
    writes fewer records.
    """

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
        self._acknowledged = 0
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "acks": "all",
                "message.timeout.ms": int(_FLUSH_TIMEOUT_S * 1000),
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1000,
                "sticky.partitioning.linger.ms": 0,
                "log_level": 2,  # broker failures are expected
            }
        )
        self._thread.start()

    @property
    def acknowledged(self) -> int:
        """The number of records that brokers have acknowledged."""
        return self._acknowledged

    def stop(self) -> None:
        """Stop the thread and wait for all acknowledgements.

        Raises `AssertionError` if an acknowledgement is missing.
        """
        self._stopped.set()
        self._thread.join()
        left = self._producer.flush(_FLUSH_TIMEOUT_S)
        assert left == 0, f"{left} records of the feed were not acknowledged"
        assert not self._failures, self._failures[:3]

    def _run(self) -> None:
        number = 0
        while not self._stopped.wait(_TICK_S):
            for _ in range(self._per_tick if self._is_read() else 1):
                try:
                    self._producer.produce(self._topic, b"%d" % number, on_delivery=self._delivered)
                except BufferError:
                    break  # the queue is full
                number += 1
            self._producer.poll(0)

    def _delivered(
        self, error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message
    ) -> None:
        if error is None:
            self._acknowledged += 1
        else:
            self._failures.append(str(error))
