"""Cases about consumer groups, timeouts, and the `kafka.*` settings of the clients."""

from __future__ import annotations

from typing import Final

from integration.parity.case import READS, WRITES, Case, Value, about, both_refuse, case, we_refuse
from integration.parity.cases.reasons import ALWAYS_IDEMPOTENT, IGNORED_OPTION, NO_JAVA_CLASSES
from integration.parity.topics import RICH

_INVALID: Final = both_refuse("OptionError")
_VALUE: Final = "SELECT v AS value FROM records"

_CONSUMER: Final[dict[str, Value]] = {
    "kafka.allow.auto.create.topics": False,
    "kafka.check.crcs": False,
    "kafka.client.dns.lookup": "use_all_dns_ips",
    "kafka.client.id": "me",
    "kafka.client.rack": "a",
    "kafka.connections.max.idle.ms": 60_000,
    "kafka.default.api.timeout.ms": 30_000,
    "kafka.exclude.internal.topics": False,
    "kafka.fetch.max.bytes": 2_000_000,
    "kafka.fetch.max.wait.ms": 50,
    "kafka.fetch.min.bytes": 100,
    "kafka.group.instance.id": "me",
    "kafka.heartbeat.interval.ms": 1_000,
    "kafka.max.partition.fetch.bytes": 1_000,
    "kafka.max.poll.interval.ms": 60_000,
    "kafka.max.poll.records": 2,
    "kafka.metadata.max.age.ms": 1,
    "kafka.metric.reporters": "org.apache.kafka.common.metrics.JmxReporter",
    "kafka.partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
    "kafka.receive.buffer.bytes": 4_096,
    "kafka.reconnect.backoff.max.ms": 500,
    "kafka.reconnect.backoff.ms": 10,
    "kafka.request.timeout.ms": 20_000,
    "kafka.retry.backoff.ms": 10,
    "kafka.security.protocol": "PLAINTEXT",
    "kafka.send.buffer.bytes": 4_096,
    "kafka.session.timeout.ms": 6_000,
    "kafka.socket.connection.setup.timeout.ms": 5_000,
}

_PRODUCER: Final[dict[str, Value]] = {
    "kafka.acks": -1,
    "kafka.batch.size": 100,
    "kafka.buffer.memory": 1_000_000,
    "kafka.client.id": "me",
    "kafka.delivery.timeout.ms": 60_000,
    "kafka.enable.idempotence": True,
    "kafka.linger.ms": 5,
    "kafka.max.block.ms": 5_000,
    "kafka.max.in.flight.requests.per.connection": 1,
    "kafka.max.request.size": 500_000,
    "kafka.metadata.max.age.ms": 1,
    "kafka.request.timeout.ms": 20_000,
    "kafka.retry.backoff.ms": 10,
}

_CONSUMER_ONLY: Final = (
    "auto.offset.reset",
    "key.deserializer",
    "value.deserializer",
    "enable.auto.commit",
)
_PRODUCER_ONLY: Final = ("key.serializer", "value.serializer")


def _number(option: str, *valid: int, rejects_zero: bool = True) -> tuple[Case, ...]:
    """Return the cases for a numeric read option."""
    return about(
        option,
        READS,
        *(case(f"{number}", {option: number}) for number in valid),
        *([case("0", {option: 0}, _INVALID)] if rejects_zero else ()),
        case("not a number", {option: "a"}, _INVALID),
    )


SETTINGS: Final[tuple[Case, ...]] = (
    *_number("kafkaConsumer.pollTimeoutMs", 5_000, rejects_zero=False),
    *_number("fetchOffset.numRetries", 1),
    *_number("fetchOffset.retryIntervalMs", 0, 10, rejects_zero=False),
    *about("groupIdPrefix", READS, case("set", {"groupIdPrefix": "mine"})),
    *about(
        "kafka.group.id",
        READS,
        case("set", {"kafka.group.id": "parity-other"}),
        case("with groupIdPrefix", {"groupIdPrefix": "mine", "kafka.group.id": "parity-other"}),
    ),
    *about("kafka.group.id", WRITES, case("set", {"kafka.group.id": "g"}, select=_VALUE)),
    *(
        each
        for name in (*_CONSUMER_ONLY, "interceptor.classes")
        for each in about(
            f"kafka.{name}", READS, case("set", {f"kafka.{name}": "earliest"}, _INVALID)
        )
    ),
    *(
        each
        for name in _PRODUCER_ONLY
        for each in about(
            f"kafka.{name}", WRITES, case("set", {f"kafka.{name}": "x"}, _INVALID, select=_VALUE)
        )
    ),
    *about(
        "a setting of the other client",
        READS,
        *(case(name, {f"kafka.{name}": "x"}, IGNORED_OPTION) for name in _PRODUCER_ONLY),
    ),
    *about(
        "a setting of the other client",
        WRITES,
        *(
            case(name, {f"kafka.{name}": "earliest"}, IGNORED_OPTION, select=_VALUE)
            for name in _CONSUMER_ONLY
        ),
    ),
    *about(
        "other consumer settings", READS, case("28 at once", {"subscribe": RICH.name, **_CONSUMER})
    ),
    *about(
        "kafka.partitioner.class",
        WRITES,
        case(
            "set",
            {"kafka.partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"},
            NO_JAVA_CLASSES,
            select=_VALUE,
        ),
    ),
    *about(
        "kafka.acks",
        WRITES,
        case("all", {"kafka.acks": "all"}, select=_VALUE),
        case("1", {"kafka.acks": 1}, ALWAYS_IDEMPOTENT, select=_VALUE),
        case("0", {"kafka.acks": 0}, ALWAYS_IDEMPOTENT, select=_VALUE),
    ),
    *about(
        "kafka.enable.idempotence",
        WRITES,
        case("false", {"kafka.enable.idempotence": False}, ALWAYS_IDEMPOTENT, select=_VALUE),
    ),
    *about(
        "kafka.retries",
        WRITES,
        case("5", {"kafka.retries": 5}, select=_VALUE),
        case("0", {"kafka.retries": 0}, ALWAYS_IDEMPOTENT, select=_VALUE),
    ),
    *about(
        "kafka.transactional.id",
        WRITES,
        case(
            "set",
            {
                "kafka.transactional.id": "t",
                "kafka.delivery.timeout.ms": 3_000,
                "kafka.request.timeout.ms": 2_000,
            },
            _INVALID,
            select=_VALUE,
        ),
    ),
    *about(
        "kafka.transaction.timeout.ms",
        WRITES,
        case(
            "set",
            {"kafka.transaction.timeout.ms": 1_000},
            we_refuse(
                "OptionError",
                "The option has no effect in Spark's connector, which writes no transactions. Ours "
                "has the option `transactionTimeout`.",
            ),
            select=_VALUE,
        ),
    ),
    *about(
        "kafka.compression.type",
        WRITES,
        *(
            case(codec, {"kafka.compression.type": codec}, select=_VALUE)
            for codec in ("none", "gzip", "snappy", "lz4", "zstd")
        ),
        case("invalid", {"kafka.compression.type": "rar"}, _INVALID, select=_VALUE),
    ),
    *about("other producer settings", WRITES, case("13 at once", {**_PRODUCER}, select=_VALUE)),
    *about(
        "kafka.config.providers",
        READS,
        case(
            "set",
            {
                "kafka.config.providers": "env",
                "kafka.config.providers.env.class": "org.apache.kafka.common.config.provider."
                "EnvVarConfigProvider",
            },
            we_refuse(
                "OptionError",
                "Ours resolves `${env:NAME}`, `${file:PATH:KEY}` and `${dir:PATH:FILE}` without "
                "this setting.",
            ),
        ),
    ),
    *about(
        "kafka.fetch.max.bytes",
        READS,
        case(
            "less than 1 MB",
            {"kafka.fetch.max.bytes": 1_000},
            we_refuse(
                "OptionError",
                "librdkafka checks the values of settings for both engines, and requires at least "
                "1,000,000 bytes.",
            ),
        ),
    ),
    *about(
        "an unknown option",
        READS,
        case("a kafka.* setting", {"kafka.not.a.setting": "x"}, IGNORED_OPTION),
    ),
    *about(
        "an unknown option",
        WRITES,
        case("a kafka.* setting", {"kafka.not.a.setting": "x"}, IGNORED_OPTION, select=_VALUE),
    ),
)
