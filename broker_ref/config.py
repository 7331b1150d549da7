"""What can be configured about a broker, under Kafka's own names.

Purpose: one table of configs (name, type, default, doc) from which a mapping of strings is parsed,
wrong values are refused by name, and DescribeConfigs answers for a broker. The server-wide
defaults of topic configs (`log.retention.ms` and the like) are in `broker_ref.topic_configs`, and
kept here by their topic-level names. Invariant: a `BrokerConfig` holds only
values that passed their check. What it must not know: what the values do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from broker_ref.protocol.errors import ApiError
from broker_ref.topic_configs import TOPIC_CONFIG_KEYS, ConfigType, check_topic_configs

INT32_MAX: Final = 2**31 - 1


class InvalidBrokerConfigError(ValueError):
    """A broker config is unknown or has a value that it cannot have; names both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One row of the table: `minimum` and `maximum` are inclusive.

    A text is one of `choices`; an empty one stands for Kafka's null.
    """

    name: str
    type: ConfigType
    default: int | bool | str
    doc: str
    minimum: int = 0
    maximum: int = INT32_MAX
    choices: tuple[str, ...] = ()

    @property
    def attribute(self) -> str:
        """The field of `BrokerConfig` that holds it."""
        return self.name.replace(".", "_")

    def parse(self, text: str) -> int | bool | str:
        """The value of `text`; InvalidBrokerConfigError where it is none."""
        if self.type is ConfigType.STRING:
            self.check(text.strip())
            return text.strip()
        if self.type is ConfigType.BOOLEAN:
            if text.strip().lower() not in ("true", "false"):
                raise self._invalid(text, "it must be true or false")
            return text.strip().lower() == "true"
        try:
            value = int(text.strip())
        except ValueError:
            raise self._invalid(text, "it is not a whole number") from None
        self.check(value)
        return value

    def check(self, value: int | str) -> None:
        """Refuse a value out of range."""
        if isinstance(value, str):
            if value not in self.choices:
                known = " or ".join(choice or "empty" for choice in self.choices)
                raise self._invalid(value, f"it must be {known}")
        elif not self.minimum <= value <= self.maximum:
            raise self._invalid(value, f"it must be from {self.minimum} to {self.maximum}")

    def text(self, value: int | bool | str) -> str | None:
        """How Kafka prints the value; None for an empty text."""
        if isinstance(value, str):
            return value or None
        return str(value).lower() if self.type is ConfigType.BOOLEAN else str(value)

    def _invalid(self, value: object, reason: str) -> InvalidBrokerConfigError:
        return InvalidBrokerConfigError(
            f"invalid value {value!r} for broker config {self.name}: {reason}"
        )


def _int(
    name: str, default: int, doc: str, *, minimum: int = 0, maximum: int = INT32_MAX
) -> ConfigKey:
    return ConfigKey(
        name=name,
        type=ConfigType.INT,
        default=default,
        doc=doc,
        minimum=minimum,
        maximum=maximum,
    )


def _bool(name: str, default: bool, doc: str) -> ConfigKey:
    return ConfigKey(name=name, type=ConfigType.BOOLEAN, default=default, doc=doc)


def _choice(name: str, default: str, doc: str, *choices: str) -> ConfigKey:
    return ConfigKey(name=name, type=ConfigType.STRING, default=default, doc=doc, choices=choices)


RACK_AWARE_REPLICA_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The one that Kafka comes with."""

BROKER_CONFIGS: Final = (
    _int("node.id", 1, "The id of this broker in its cluster."),
    _bool("auto.create.topics.enable", True, "Create a topic when a client first asks for it."),
    _bool("delete.topic.enable", True, "Let admin clients delete topics."),
    _int("num.partitions", 1, "Partitions of a topic created without a count.", minimum=1),
    _int(
        "default.replication.factor",
        1,
        "Replicas of a topic created without a replication factor.",
        minimum=1,
        maximum=2**15 - 1,
    ),
    _int(
        "broker.heartbeat.interval.ms",
        2000,
        "How often a broker tells the controller that it is there.",
        minimum=1,
    ),
    _int(
        "broker.session.timeout.ms",
        9000,
        "A broker that the controller has not heard of for this long is fenced.",
        minimum=1,
    ),
    _bool(
        "auto.leader.rebalance.enable",
        True,
        "Give leadership back to preferred leaders from time to time.",
    ),
    _int(
        "leader.imbalance.check.interval.seconds",
        300,
        "How often it is checked whether preferred leaders lead.",
        minimum=1,
    ),
    _int(
        "unclean.leader.election.interval.ms",
        300000,
        "How often partitions without a leader get one uncleanly, where their topic allows it.",
        minimum=1,
    ),
    _int("message.max.bytes", 1048588, "Largest record batch of a topic that does not say."),
    _int("socket.request.max.bytes", 104857600, "Largest request accepted.", minimum=1),
    _int("fetch.max.bytes", 57671680, "Most bytes of one fetch response.", minimum=1024),
    _int(
        "connections.max.idle.ms",
        600000,
        "A connection without a request for this long is closed.",
        minimum=1,
    ),
    _int(
        "log.cleaner.backoff.ms",
        15000,
        "How often compaction looks for something to do.",
    ),
    _int(
        "log.cleaner.dedupe.buffer.size",
        134217728,
        "Memory for the keys of the log that is being compacted, in bytes.",
        minimum=1 << 20,
    ),
    _bool("log.cleaner.enable", True, "Compact the logs of topics with cleanup.policy=compact."),
    _int(
        "log.retention.check.interval.ms",
        300000,
        "How often logs are checked for segments past their retention.",
        minimum=1,
    ),
    _int(
        "log.flush.offset.checkpoint.interval.ms",
        60000,
        "How often it is noted what of the logs is flushed and where they start.",
        minimum=1,
    ),
    _int(
        "producer.id.expiration.check.interval.ms",
        600000,
        "How often logs forget producers that stopped writing.",
        minimum=1,
    ),
    _int(
        "replica.lag.time.max.ms",
        30000,
        "A follower that has not caught up for this long is no longer in sync.",
        minimum=1,
    ),
    _int(
        "replica.fetch.wait.max.ms",
        500,
        "How long a leader keeps a follower's fetch that has too little to answer.",
    ),
    _int("replica.fetch.min.bytes", 1, "What a follower's fetch waits for."),
    _int("replica.fetch.max.bytes", 1048576, "Most bytes of a partition in a follower's fetch."),
    _int(
        "replica.fetch.response.max.bytes",
        10485760,
        "Most bytes of all partitions in a follower's fetch.",
    ),
    _int(
        "replica.fetch.backoff.ms",
        1000,
        "How long a follower waits after an error before it fetches again.",
    ),
    _int(
        "replica.socket.timeout.ms",
        30000,
        "How long a follower waits for an answer of its leader.",
        minimum=1,
    ),
    _int(
        "replica.high.watermark.checkpoint.interval.ms",
        5000,
        "How often high watermarks are noted on disk.",
        minimum=1,
    ),
    _int("offset.metadata.max.bytes", 4096, "Longest metadata of a committed offset."),
    _int(
        "max.incremental.fetch.session.cache.slots",
        1000,
        "Most fetch sessions kept.",
    ),
    _int(
        "max.request.partition.size.limit",
        2000,
        "Most partitions that a page of DescribeTopicPartitions has.",
        minimum=1,
    ),
    _choice(
        "replica.selector.class",
        "",
        "How a consumer is sent to a follower that is nearer (KIP-392); empty for never.",
        "",
        RACK_AWARE_REPLICA_SELECTOR,
    ),
    _int(
        "group.initial.rebalance.delay.ms",
        3000,
        "How long the first members of a group wait for others that may be starting.",
    ),
    _int(
        "group.max.session.timeout.ms",
        1800000,
        "Longest session timeout that a member may ask for.",
    ),
    _int("group.max.size", INT32_MAX, "Most members of a group.", minimum=1),
    _int(
        "group.min.session.timeout.ms",
        6000,
        "Shortest session timeout that a member may ask for.",
    ),
    _int(
        "offsets.commit.timeout.ms",
        5000,
        "How long a commit waits for the replicas of __consumer_offsets.",
        minimum=1,
    ),
    _int(
        "offsets.retention.check.interval.ms",
        600000,
        "How often groups and offsets are checked for their retention.",
        minimum=1,
    ),
    _int(
        "offsets.retention.minutes",
        10080,
        "How long offsets are kept after the last commit, or after the last member left.",
        minimum=1,
    ),
    _int(
        "offsets.topic.num.partitions",
        50,
        "Partitions of __consumer_offsets; must not change once it exists.",
        minimum=1,
    ),
    _int(
        "offsets.topic.replication.factor",
        1,
        "Replicas of __consumer_offsets.",
        minimum=1,
        maximum=2**15 - 1,
    ),
    _int(
        "offsets.topic.segment.bytes",
        104857600,
        "Segment size of __consumer_offsets.",
        minimum=1,
    ),
    _int(
        "transaction.max.timeout.ms",
        900000,
        "Longest transaction timeout that a producer may ask for.",
        minimum=1,
    ),
    _int(
        "transactional.id.expiration.ms",
        604800000,
        "A transactional id that has not been used for this long is forgotten.",
        minimum=1,
    ),
    _int(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10000,
        "How often it is checked whether transactions have timed out.",
        minimum=1,
    ),
    _int(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3600000,
        "How often it is checked whether transactional ids have expired.",
        minimum=1,
    ),
    _bool(
        "transaction.two.phase.commit.enable",
        False,
        "Let producers have transactions without a timeout, for two-phase commit (KIP-939).",
    ),
    _bool(
        "transaction.partition.verification.enable",
        True,
        "Append transactional records only where the coordinator knows of the partition (KIP-890).",
    ),
    _int(
        "transaction.state.log.num.partitions",
        50,
        "Partitions of __transaction_state; must not change once it exists.",
        minimum=1,
    ),
    _int(
        "transaction.state.log.replication.factor",
        1,
        "Replicas of __transaction_state.",
        minimum=1,
        maximum=2**15 - 1,
    ),
    _int(
        "transaction.state.log.min.isr",
        1,
        "In-sync replicas that a write to __transaction_state needs.",
        minimum=1,
    ),
    _int(
        "transaction.state.log.segment.bytes",
        104857600,
        "Segment size of __transaction_state.",
        minimum=1,
    ),
    _bool(
        "unstable.api.versions.enable",
        False,
        "Serve the API versions that Kafka does not call stable yet.",
    ),
)

_BY_NAME: Final = MappingProxyType({key.name: key for key in BROKER_CONFIGS})

_TOPIC_DEFAULTS: Final = MappingProxyType(
    {
        key.server_config: (key.name, 1)
        for key in TOPIC_CONFIG_KEYS.values()
        if key.server_config is not None and key.server_config not in _BY_NAME
    }
    | {
        "log.retention.minutes": ("retention.ms", 60_000),
        "log.retention.hours": ("retention.ms", 3_600_000),
        "log.roll.hours": ("segment.ms", 3_600_000),
    }
)
"""Server-wide defaults: the topic config each sets, and the factor from its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The configuration of one broker.

    `cluster_id` None takes the id persisted in storage, or makes one at the first start.
    `topic_defaults` are server-wide defaults of topic configs, by their topic-level names.
    """

    node_id: int = 1
    cluster_id: str | None = None
    rack: str | None = None
    auto_create_topics_enable: bool = True
    delete_topic_enable: bool = True
    num_partitions: int = 1
    default_replication_factor: int = 1
    broker_heartbeat_interval_ms: int = 2000
    broker_session_timeout_ms: int = 9000
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 300
    unclean_leader_election_interval_ms: int = 300000
    message_max_bytes: int = 1048588
    socket_request_max_bytes: int = 104857600
    fetch_max_bytes: int = 57671680
    connections_max_idle_ms: int = 600000
    log_cleaner_backoff_ms: int = 15000
    log_cleaner_dedupe_buffer_size: int = 134217728
    log_cleaner_enable: bool = True
    log_retention_check_interval_ms: int = 300000
    log_flush_offset_checkpoint_interval_ms: int = 60000
    producer_id_expiration_check_interval_ms: int = 600000
    replica_lag_time_max_ms: int = 30000
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_min_bytes: int = 1
    replica_fetch_max_bytes: int = 1048576
    replica_fetch_response_max_bytes: int = 10485760
    replica_fetch_backoff_ms: int = 1000
    replica_socket_timeout_ms: int = 30000
    replica_high_watermark_checkpoint_interval_ms: int = 5000
    offset_metadata_max_bytes: int = 4096
    max_incremental_fetch_session_cache_slots: int = 1000
    max_request_partition_size_limit: int = 2000
    replica_selector_class: str = ""
    group_initial_rebalance_delay_ms: int = 3000
    group_max_session_timeout_ms: int = 1800000
    group_max_size: int = INT32_MAX
    group_min_session_timeout_ms: int = 6000
    offsets_commit_timeout_ms: int = 5000
    offsets_retention_check_interval_ms: int = 600000
    offsets_retention_minutes: int = 10080
    offsets_topic_num_partitions: int = 50
    offsets_topic_replication_factor: int = 1
    offsets_topic_segment_bytes: int = 104857600
    transaction_max_timeout_ms: int = 900000
    transactional_id_expiration_ms: int = 604800000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3600000
    transaction_two_phase_commit_enable: bool = False
    transaction_partition_verification_enable: bool = True
    transaction_state_log_num_partitions: int = 50
    transaction_state_log_replication_factor: int = 1
    transaction_state_log_min_isr: int = 1
    transaction_state_log_segment_bytes: int = 104857600
    unstable_api_versions_enable: bool = False
    topic_defaults: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in BROKER_CONFIGS:
            key.check(getattr(self, key.attribute))

    @classmethod
    def from_mapping(cls, configs: Mapping[str, str], **fields: Any) -> BrokerConfig:
        """Parse configs by Kafka's names; `fields` are taken as they are.

        InvalidBrokerConfigError names a config that is unknown or has a value it cannot have.
        """
        defaults: dict[str, tuple[int, str]] = {}
        for name, text in configs.items():
            if name in _BY_NAME:
                fields[_BY_NAME[name].attribute] = _BY_NAME[name].parse(text)
            elif name in _TOPIC_DEFAULTS:
                topic_name, factor = _TOPIC_DEFAULTS[name]
                value = _topic_default(name, topic_name, text, factor)
                # The finer unit wins, as in Kafka: ms over minutes over hours.
                defaults[topic_name] = min(
                    defaults.get(topic_name, (factor, value)), (factor, value)
                )
            else:
                known = ", ".join(sorted([*_BY_NAME, *_TOPIC_DEFAULTS]))
                raise InvalidBrokerConfigError(f"unknown broker config {name!r}; known are {known}")
        fields["topic_defaults"] = {name: value for name, (_, value) in defaults.items()}
        return cls(**fields)

    def topic_config_defaults(self) -> dict[str, str]:
        """The topic configs of a topic that has none of its own, where they are not Kafka's."""
        defaults = dict(self.topic_defaults)
        if self.message_max_bytes != _BY_NAME["message.max.bytes"].default:
            defaults["max.message.bytes"] = str(self.message_max_bytes)
        return defaults

    def value(self, key: ConfigKey) -> int | bool | str:
        """The value of one row of the table."""
        value: int | bool | str = getattr(self, key.attribute)
        return value


def _topic_default(name: str, topic_name: str, text: str, factor: int) -> str:
    """The value that a server-wide config gives to the topic config; checked as such."""
    try:
        value = text if factor == 1 else str(int(text) * factor if int(text) >= 0 else -1)
        return check_topic_configs({topic_name: value})[topic_name]
    except (ValueError, ApiError) as error:
        raise InvalidBrokerConfigError(
            f"invalid value {text!r} for broker config {name}: {error}"
        ) from None
