"""A common interface to two independent Kafka clients.

The tests check each statement about a broker with librdkafka (confluent-kafka) and with
kafka-python, which share no code. A `ClientError` has Kafka's error code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import confluent_kafka
import kafka
import kafka.errors
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic  # type: ignore[attr-defined]
from kafka.admin import ConfigResource as PythonConfigResource
from kafka.admin import KafkaAdminClient
from kio.schema.errors import ErrorCode

TIMEOUT_S = 30.0
LOG_LEVEL = 2
"""Critical. librdkafka logs lost connections to stderr, even after pytest's summary."""
PYTHON_SILENT = {"metrics_enabled": False}


Headers = tuple[tuple[str, bytes | None], ...]


class ClientError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(str(code))
        self.code = ErrorCode(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    is_log_append_time: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    value: bytes | None = b"value"
    key: bytes | None = b"key"
    headers: Headers = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a producer, with the names of Kafka's Java producer."""

    acks: str = "all"
    codec: str = "none"
    idempotent: bool = False
    max_request_bytes: int = 8 * 1024 * 1024


DEFAULTS = Settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    name: str
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)


class Client(Protocol):
    """A client of a cluster. Methods raise `ClientError` if the broker returns an error code."""

    def write(
        self, topic: str, messages: Sequence[Message], *, settings: Settings = DEFAULTS
    ) -> list[int]:
        """Write to partition 0, wait for acknowledgements, and return the offsets, or -1."""

    def read(self, topic: str, count: int, *, offset: int = 0, isolation: str = ...) -> list[Row]:
        """Read `count` records of partition 0, starting at `offset`."""

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        """Return the first offset of partition 0 with this timestamp or a later one, or None."""

    def ends(self, topic: str) -> tuple[int, int]:
        """Return the earliest and the latest offset of partition 0."""

    def create(self, topic: Topic) -> None: ...

    def delete(self, name: str) -> None: ...

    def grow(self, name: str, count: int) -> None: ...

    def delete_records(self, name: str, offset: int) -> int:
        """Delete the records of partition 0 before `offset` and return the new log start offset."""

    def configs(self, name: str) -> dict[str, str | None]:
        """Return all configs of a topic."""

    def topics(self) -> dict[str, int]:
        """Return all topics with their partition counts."""

    def brokers(self) -> list[str]:
        """Return the addresses of all brokers."""

    def commit(self, group: str, topic: str, offset: int, metadata: str) -> None:
        """Commit an offset for partition 0 without group membership."""

    def committed(self, group: str, topic: str) -> tuple[int, str] | None:
        """Return the committed offset and metadata of partition 0, or None without a commit."""


class Confluent:
    """A client that uses confluent-kafka, which wraps librdkafka."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._admin_client: AdminClient | None = None

    def write(
        self, topic: str, messages: Sequence[Message], *, settings: Settings = DEFAULTS
    ) -> list[int]:
        reports: list[tuple[Any, Any]] = []
        options = {
            "bootstrap.servers": self._bootstrap_servers,
            "log_level": LOG_LEVEL,
            "acks": settings.acks,
            "compression.type": settings.codec,
            "enable.idempotence": settings.idempotent,
            "message.max.bytes": settings.max_request_bytes,
            "linger.ms": 5,
        }
        producer = confluent_kafka.Producer(options)
        for message in messages:
            producer.produce(
                topic,
                value=message.value,
                key=message.key,
                partition=0,
                headers=list(message.headers),
                timestamp=message.timestamp_ms or 0,
                on_delivery=lambda error, delivered: reports.append((error, delivered)),
            )
        assert producer.flush(TIMEOUT_S) == 0
        assert len(reports) == len(messages)
        for error, _ in reports:
            if error is not None:
                raise ClientError(error.code())
        return [delivered.offset() for _, delivered in reports]

    def read(
        self, topic: str, count: int, *, offset: int = 0, isolation: str = "read_uncommitted"
    ) -> list[Row]:
        rows: list[Row] = []
        with self._consumer("reader", **{"isolation.level": isolation}) as consumer:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
            while len(rows) < count:
                messages = consumer.consume(count - len(rows), timeout=TIMEOUT_S)
                assert messages, f"{len(rows)} of {count} records arrived in {TIMEOUT_S} s"
                rows += [_confluent_row(message) for message in messages]
        return rows

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        with self._consumer("times") as consumer:
            requested = confluent_kafka.TopicPartition(topic, 0, timestamp_ms)
            (found,) = consumer.offsets_for_times([requested], timeout=TIMEOUT_S)
            assert found.error is None
            return int(found.offset) if found.offset >= 0 else None

    def ends(self, topic: str) -> tuple[int, int]:
        with self._consumer("ends") as consumer:
            partition = confluent_kafka.TopicPartition(topic, 0)
            low, high = consumer.get_watermark_offsets(partition, timeout=TIMEOUT_S)
            return int(low), int(high)

    def create(self, topic: Topic) -> None:
        new = NewTopic(topic.name, topic.partitions, config=dict(topic.configs))
        _confluent_result(self._admin().create_topics([new])[topic.name])

    def delete(self, name: str) -> None:
        _confluent_result(self._admin().delete_topics([name])[name])

    def grow(self, name: str, count: int) -> None:
        _confluent_result(self._admin().create_partitions([NewPartitions(name, count)])[name])

    def delete_records(self, name: str, offset: int) -> int:
        requested = confluent_kafka.TopicPartition(name, 0, offset)
        (future,) = self._admin().delete_records([requested]).values()
        return int(_confluent_result(future).low_watermark)

    def configs(self, name: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        entries = _confluent_result(self._admin().describe_configs([resource])[resource])
        return {key: entry.value for key, entry in entries.items()}

    def topics(self) -> dict[str, int]:
        found = self._admin().list_topics(timeout=TIMEOUT_S).topics
        return {name: len(topic.partitions) for name, topic in found.items()}

    def brokers(self) -> list[str]:
        nodes = _confluent_result(self._admin().describe_cluster()).nodes
        return [f"{node.host}:{node.port}" for node in nodes]

    def commit(self, group: str, topic: str, offset: int, metadata: str) -> None:
        with self._consumer(group) as consumer:
            requested = confluent_kafka.TopicPartition(topic, 0, offset, metadata)
            try:
                committed = consumer.commit(offsets=[requested], asynchronous=False)
            except confluent_kafka.KafkaException as error:
                raise ClientError(error.args[0].code()) from error
            for partition in committed or []:
                if partition.error is not None:
                    raise ClientError(partition.error.code())

    def committed(self, group: str, topic: str) -> tuple[int, str] | None:
        with self._consumer(group) as consumer:
            requested = confluent_kafka.TopicPartition(topic, 0)
            (found,) = consumer.committed([requested], timeout=TIMEOUT_S)
            return (found.offset, found.metadata or "") if found.offset >= 0 else None

    def _admin(self) -> AdminClient:
        # Keep the client, because closing an admin client cancels its requests.
        if self._admin_client is None:
            self._admin_client = AdminClient(
                {"bootstrap.servers": self._bootstrap_servers, "log_level": LOG_LEVEL}
            )
        return self._admin_client

    @contextmanager
    def _consumer(self, group: str, **options: str) -> Iterator[confluent_kafka.Consumer]:
        settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap_servers,
            "log_level": LOG_LEVEL,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            **options,
        }
        consumer = confluent_kafka.Consumer(settings)
        try:
            yield consumer
        finally:
            consumer.close()


def _confluent_row(message: confluent_kafka.Message) -> Row:
    error = message.error()
    if error is not None and error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
        # librdkafka reports an out-of-range offset with its own code if `auto.offset.reset` is
        # unset.
        raise ClientError(ErrorCode.offset_out_of_range)
    if error is not None:
        raise ClientError(error.code())
    kind, timestamp_ms = message.timestamp()
    return Row(
        offset=int(message.offset() or 0),
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),  # type: ignore[arg-type]
        timestamp_ms=timestamp_ms,
        is_log_append_time=kind == confluent_kafka.TIMESTAMP_LOG_APPEND_TIME,
    )


def _confluent_result(future: Future[Any]) -> Any:
    try:
        return future.result(TIMEOUT_S)
    except confluent_kafka.KafkaException as error:
        raise ClientError(error.args[0].code()) from error


class KafkaPython:
    """A client that uses kafka-python, which is written in Python."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    def write(
        self, topic: str, messages: Sequence[Message], *, settings: Settings = DEFAULTS
    ) -> list[int]:
        with self._closing(
            kafka.KafkaProducer,
            acks=settings.acks if settings.acks == "all" else int(settings.acks),
            compression_type=None if settings.codec == "none" else settings.codec,
            enable_idempotence=settings.idempotent,
            max_request_size=settings.max_request_bytes,
            **PYTHON_SILENT,
        ) as producer:
            futures = [
                producer.send(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers),
                    partition=0,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            with _python_errors():
                return [int(future.get(TIMEOUT_S).offset) for future in futures]

    def read(
        self, topic: str, count: int, *, offset: int = 0, isolation: str = "read_uncommitted"
    ) -> list[Row]:
        partition = kafka.TopicPartition(topic, 0)
        rows: list[Row] = []
        with self._consumer(isolation_level=isolation) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, offset)
            while len(rows) < count:
                with _python_errors():
                    polled = consumer.poll(TIMEOUT_S * 1000, max_records=count - len(rows))
                assert polled, f"{len(rows)} of {count} records arrived in {TIMEOUT_S} s"
                rows += [_python_row(record) for record in polled[partition]]
        return rows

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        partition = kafka.TopicPartition(topic, 0)
        with self._consumer() as consumer:
            found = consumer.offsets_for_times({partition: timestamp_ms})[partition]
            return None if found is None else int(found.offset)

    def ends(self, topic: str) -> tuple[int, int]:
        partition = kafka.TopicPartition(topic, 0)
        with self._consumer() as consumer:
            low = consumer.beginning_offsets([partition])[partition]
            return int(low), int(consumer.end_offsets([partition])[partition])

    def create(self, topic: Topic) -> None:
        options = {
            "num_partitions": topic.partitions,
            "replication_factor": 1,
            "configs": dict(topic.configs),
        }
        with self._admin() as admin, _python_errors():
            admin.create_topics({topic.name: options})

    def delete(self, name: str) -> None:
        with self._admin() as admin, _python_errors():
            admin.delete_topics([name])

    def grow(self, name: str, count: int) -> None:
        with self._admin() as admin, _python_errors():
            admin.create_partitions({name: count})

    def delete_records(self, name: str, offset: int) -> int:
        partition = kafka.TopicPartition(name, 0)
        with self._admin() as admin, _python_errors():
            return int(admin.delete_records({partition: offset})[partition]["low_watermark"])

    def configs(self, name: str) -> dict[str, str | None]:
        resource = PythonConfigResource("TOPIC", name)
        with self._admin() as admin, _python_errors():
            found = admin.describe_configs([resource], config_filter="all")
        ((_, entries),) = next(iter(found.values())).items()
        return {key: entry["value"] for key, entry in entries.items()}

    def topics(self) -> dict[str, int]:
        with self._admin() as admin:
            described = admin.describe_topics(admin.list_topics())
        return {topic["name"]: len(topic["partitions"]) for topic in described}

    def brokers(self) -> list[str]:
        with self._admin() as admin:
            nodes = admin.describe_cluster()["brokers"]
        return [f"{node['host']}:{node['port']}" for node in nodes]

    def commit(self, group: str, topic: str, offset: int, metadata: str) -> None:
        partition = kafka.TopicPartition(topic, 0)
        with self._consumer(group_id=group) as consumer, _python_errors():
            consumer.assign([partition])
            consumer.commit({partition: kafka.OffsetAndMetadata(offset, metadata, -1)})

    def committed(self, group: str, topic: str) -> tuple[int, str] | None:
        partition = kafka.TopicPartition(topic, 0)
        with self._consumer(group_id=group) as consumer:
            found = consumer.committed(partition, metadata=True)
            return None if found is None else (int(found.offset), str(found.metadata))

    @contextmanager
    def _closing(self, kind: Any, **options: Any) -> Iterator[Any]:
        client = kind(bootstrap_servers=self._bootstrap_servers, **options)
        try:
            yield client
        finally:
            client.close()

    def _admin(self) -> Any:
        return self._closing(KafkaAdminClient)

    def _consumer(self, **options: Any) -> Any:
        settings = {"enable_auto_commit": False, "auto_offset_reset": "none", **PYTHON_SILENT}
        return self._closing(kafka.KafkaConsumer, **(settings | options))


def _python_row(record: Any) -> Row:
    return Row(
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
        timestamp_ms=record.timestamp,
        is_log_append_time=record.timestamp_type == 1,
    )


@contextmanager
def _python_errors() -> Iterator[None]:
    try:
        yield
    except kafka.errors.OffsetOutOfRangeError as error:
        raise ClientError(ErrorCode.offset_out_of_range) from error
    except kafka.errors.KafkaError as error:
        code = getattr(error, "errno", None)
        if not isinstance(code, int) or code < 0:
            raise
        raise ClientError(code) from error


def load_partitions(consumer: Any, topic: str) -> None:
    """Load the partitions of a topic before a kafka-python consumer joins its group.

    A consumer that joins without this metadata rejoins when the metadata arrives. kafka-python
    3.0.12 loses the assignment if a poll ends between these two steps.
    """
    assert consumer.partitions_for_topic(topic)
