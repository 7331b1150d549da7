"""Broker configs with Kafka's names (`kafka.server.KafkaConfig`).

A table with the name, type, default and documentation of each config is used to parse configs, to
reject invalid values and to answer DescribeConfigs. The server-wide defaults of topic configs (such
as `log.retention.ms`) are defined in `broker_ref.topic_configs` and stored here under their
topic-level names (see `broker_ref.server_defaults`). The configs of listeners are defined in
`broker_ref.security.configs`, and those without an effect in `broker_ref.unimplemented_configs`.
Invariant: a `BrokerConfig` contains only
valid values.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final

from broker_ref.config_keys import (
    INT32_MAX,
    ConfigKey,
    InvalidBrokerConfigError,
    UpdateMode,
)
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import AclCache
from broker_ref.security.authorizer import (
    STANDARD_AUTHORIZER,
    StandardAuthorizer,
    parse_super_users,
)
from broker_ref.security.configs import (
    LISTENER_PREFIX,
    SECURITY_KEYS,
    SecurityConfigs,
    is_security_config,
)
from broker_ref.server_defaults import SERVER_DEFAULTS, TOPIC_CONFIG_SYNONYMS, TOPIC_DEFAULTS
from broker_ref.topic_configs import ConfigType, check_topic_configs
from broker_ref.unimplemented_configs import UNIMPLEMENTED_CONFIGS

__all__ = [
    "BROKER_CONFIGS",
    "CONFIG_KEYS",
    "BrokerConfig",
    "ConfigKey",
    "InvalidBrokerConfigError",
]

RACK: Final = "broker.rack"
_SECURITY_PREFIXES: Final = ("ssl.", "sasl.", "principal.", "security.")
"""The prefixes of configs that must not be ignored, unless they have their default values."""

logger = logging.getLogger(__name__)


def _int(
    name: str,
    default: int,
    doc: str,
    *,
    kind: ConfigType = ConfigType.INT,
    minimum: int = 0,
    maximum: int = INT32_MAX,
    update_mode: UpdateMode = UpdateMode.READ_ONLY,
) -> ConfigKey:
    return ConfigKey(
        name=name,
        type=kind,
        default=default,
        doc=doc,
        minimum=minimum,
        maximum=maximum,
        update_mode=update_mode,
    )


def _bool(
    name: str, default: bool, doc: str, *, update_mode: UpdateMode = UpdateMode.READ_ONLY
) -> ConfigKey:
    return ConfigKey(
        name=name, type=ConfigType.BOOLEAN, default=default, doc=doc, update_mode=update_mode
    )


def _choice(
    name: str, default: str, doc: str, *choices: str, kind: ConfigType = ConfigType.STRING
) -> ConfigKey:
    return ConfigKey(name=name, type=kind, default=default, doc=doc, choices=choices)


RACK_AWARE_REPLICA_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The only implementation of `ReplicaSelector` that Kafka provides."""

BROKER_CONFIGS: Final = (
    _int("node.id", 1, "The node id of this broker."),
    _bool(
        "auto.create.topics.enable",
        True,
        "Create a missing topic when a client requests its metadata.",
    ),
    _bool("delete.topic.enable", True, "Allow clients to delete topics."),
    _int("num.partitions", 1, "Default number of partitions of a new topic.", minimum=1),
    _int(
        "default.replication.factor",
        1,
        "Default replication factor of a new topic.",
        minimum=1,
        maximum=2**15 - 1,
    ),
    _int(
        "broker.heartbeat.interval.ms",
        2000,
        "Interval between a broker's heartbeats to the controller.",
        minimum=1,
    ),
    _int(
        "broker.session.timeout.ms",
        9000,
        "Time without a heartbeat after which the controller fences a broker.",
        minimum=1,
    ),
    _bool(
        "auto.leader.rebalance.enable",
        True,
        "Periodically move leadership back to the preferred leaders.",
    ),
    _int(
        "leader.imbalance.check.interval.seconds",
        300,
        "Interval between checks for partitions that are not led by their preferred leader.",
        minimum=1,
        kind=ConfigType.LONG,
    ),
    _int(
        "unclean.leader.election.interval.ms",
        300000,
        "Interval between checks for partitions without a leader that need an unclean leader "
        "election. Applies to topics with unclean.leader.election.enable=true.",
        minimum=1,
        kind=ConfigType.LONG,
    ),
    _int(
        "message.max.bytes",
        1048588,
        "Default maximum size of a record batch, in bytes.",
        update_mode=UpdateMode.CLUSTER,
    ),
    _int("socket.request.max.bytes", 104857600, "Maximum size of a request, in bytes.", minimum=1),
    _int("fetch.max.bytes", 57671680, "Maximum size of a fetch response, in bytes.", minimum=1024),
    _int(
        "connections.max.idle.ms",
        600000,
        "Time without a request after which a connection is closed.",
        minimum=1,
        kind=ConfigType.LONG,
    ),
    _int(
        "log.cleaner.backoff.ms",
        15000,
        "Interval between checks for logs that need compaction.",
        kind=ConfigType.LONG,
        update_mode=UpdateMode.CLUSTER,
    ),
    _int(
        "log.cleaner.dedupe.buffer.size",
        134217728,
        "Memory for the keys of the log that is being compacted, in bytes.",
        minimum=1 << 20,
        kind=ConfigType.LONG,
        update_mode=UpdateMode.CLUSTER,
    ),
    _bool("log.cleaner.enable", True, "Compact the logs of topics with cleanup.policy=compact."),
    _int(
        "log.retention.check.interval.ms",
        300000,
        "Interval between checks for segments that are eligible for deletion.",
        minimum=1,
        kind=ConfigType.LONG,
    ),
    _int(
        "log.flush.offset.checkpoint.interval.ms",
        60000,
        "Interval between checkpoints of recovery points and log start offsets.",
        minimum=1,
    ),
    _int(
        "producer.id.expiration.ms",
        86400000,
        "Time after a producer's last write until the broker removes the producer's state from a "
        "log, unless the producer has an open transaction.",
        minimum=1,
        update_mode=UpdateMode.CLUSTER,
    ),
    _int(
        "producer.id.expiration.check.interval.ms",
        600000,
        "Interval between checks for expired producers.",
        minimum=1,
    ),
    _int(
        "replica.lag.time.max.ms",
        30000,
        "Time after which a follower that has not caught up is removed from the ISR.",
        minimum=1,
        kind=ConfigType.LONG,
    ),
    _int(
        "replica.fetch.wait.max.ms",
        500,
        "Maximum time that the leader waits for replica.fetch.min.bytes before it responds "
        "to a follower's fetch request.",
    ),
    _int(
        "replica.fetch.min.bytes",
        1,
        "Minimum size of the response to a follower's fetch request, in bytes.",
    ),
    _int(
        "replica.fetch.max.bytes",
        1048576,
        "Maximum size of one partition's data in the response to a follower's fetch request, in "
        "bytes.",
    ),
    _int(
        "replica.fetch.response.max.bytes",
        10485760,
        "Maximum size of the response to a follower's fetch request, in bytes.",
    ),
    _int(
        "replica.fetch.backoff.ms",
        1000,
        "Time that a follower waits after an error before it fetches again.",
    ),
    _int(
        "replica.socket.timeout.ms",
        30000,
        "Time that a follower waits for a response from its leader.",
        minimum=1,
    ),
    _int(
        "replica.high.watermark.checkpoint.interval.ms",
        5000,
        "Interval between checkpoints of high watermarks.",
        minimum=1,
        kind=ConfigType.LONG,
    ),
    _int(
        "offset.metadata.max.bytes",
        4096,
        "Maximum size of the metadata of a committed offset, in bytes.",
    ),
    _int(
        "max.incremental.fetch.session.cache.slots",
        1000,
        "Maximum number of fetch sessions.",
    ),
    _int(
        "max.request.partition.size.limit",
        2000,
        "Maximum number of partitions in one DescribeTopicPartitions response.",
        minimum=1,
    ),
    _choice(
        "replica.selector.class",
        "",
        "Class that selects the replica from which a consumer reads (KIP-392); if empty, consumers "
        "read from the leader.",
        "",
        RACK_AWARE_REPLICA_SELECTOR,
    ),
    _int(
        "group.initial.rebalance.delay.ms",
        3000,
        "Time that a new group waits for more members before its first rebalance.",
    ),
    _int(
        "group.max.session.timeout.ms",
        1800000,
        "Maximum session timeout of a group member.",
    ),
    _int("group.max.size", INT32_MAX, "Maximum number of members of a group.", minimum=1),
    _int(
        "group.min.session.timeout.ms",
        6000,
        "Minimum session timeout of a group member.",
    ),
    _choice(
        "group.consumer.assignors",
        "uniform,range",
        "Server-side assignors of consumer groups; the first one is the default.",
        "uniform,range",
        "range,uniform",
        "uniform",
        "range",
        kind=ConfigType.LIST,
    ),
    _int(
        "group.consumer.assignment.interval.ms",
        1000,
        "Minimum time between two target assignments of a consumer group.",
        update_mode=UpdateMode.CLUSTER,
    ),
    _int(
        "group.consumer.min.assignment.interval.ms",
        0,
        "Minimum value of group.consumer.assignment.interval.ms.",
    ),
    _int(
        "group.consumer.max.assignment.interval.ms",
        15000,
        "Maximum value of group.consumer.assignment.interval.ms.",
    ),
    _int(
        "group.consumer.heartbeat.interval.ms",
        5000,
        "Interval between the heartbeats of the members of consumer groups.",
        minimum=1,
    ),
    _int(
        "group.consumer.min.heartbeat.interval.ms",
        5000,
        "Minimum value of group.consumer.heartbeat.interval.ms.",
        minimum=1,
    ),
    _int(
        "group.consumer.max.heartbeat.interval.ms",
        15000,
        "Maximum value of group.consumer.heartbeat.interval.ms.",
        minimum=1,
    ),
    _int(
        "group.consumer.max.size",
        INT32_MAX,
        "Maximum number of members of a consumer group.",
        minimum=1,
    ),
    _int(
        "group.consumer.session.timeout.ms",
        45000,
        "Time without a heartbeat after which a member is removed from its consumer group.",
        minimum=1,
    ),
    _int(
        "group.consumer.min.session.timeout.ms",
        45000,
        "Minimum value of group.consumer.session.timeout.ms.",
        minimum=1,
    ),
    _int(
        "group.consumer.max.session.timeout.ms",
        60000,
        "Maximum value of group.consumer.session.timeout.ms.",
        minimum=1,
    ),
    _int(
        "offsets.commit.timeout.ms",
        5000,
        "Maximum time that an offset commit waits to be replicated in __consumer_offsets.",
        minimum=1,
    ),
    _int(
        "offsets.retention.check.interval.ms",
        600000,
        "Interval between checks for expired groups and offsets.",
        minimum=1,
        kind=ConfigType.LONG,
    ),
    _int(
        "offsets.retention.minutes",
        10080,
        "Retention period of committed offsets. The period starts when the last member leaves the "
        "group or, for consumers with manual assignment, at the last commit.",
        minimum=1,
    ),
    _int(
        "offsets.topic.num.partitions",
        50,
        "Number of partitions of __consumer_offsets; must not change after the topic is created.",
        minimum=1,
    ),
    _int(
        "offsets.topic.replication.factor",
        1,
        "Replication factor of __consumer_offsets.",
        minimum=1,
        maximum=2**15 - 1,
        kind=ConfigType.SHORT,
    ),
    _int(
        "offsets.topic.segment.bytes",
        104857600,
        "Segment size of __consumer_offsets, in bytes.",
        minimum=1,
    ),
    _int(
        "transaction.max.timeout.ms",
        900000,
        "Maximum transaction timeout of a producer.",
        minimum=1,
    ),
    _int(
        "transactional.id.expiration.ms",
        604800000,
        "Time without transaction status updates after which a transactional id expires.",
        minimum=1,
    ),
    _int(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10000,
        "Interval between checks for timed-out transactions.",
        minimum=1,
    ),
    _int(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3600000,
        "Interval between checks for expired transactional ids.",
        minimum=1,
    ),
    _bool(
        "transaction.two.phase.commit.enable",
        False,
        "Allow transactions without a timeout, for two-phase commit (KIP-939).",
    ),
    _bool(
        "transaction.partition.verification.enable",
        True,
        "Before the first write of a transaction to a partition, verify with the coordinator that "
        "the partition is part of the transaction (KIP-890).",
        update_mode=UpdateMode.CLUSTER,
    ),
    _int(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        "Time before the broker retries adding a partition to a transaction, while the producer's "
        "previous transaction is being completed (KIP-890).",
        minimum=1,
    ),
    _int(
        "add.partitions.to.txn.retry.backoff.max.ms",
        100,
        "Maximum total time for which the broker retries adding a partition to a transaction; "
        "after that, the producer must retry.",
    ),
    _int(
        "transaction.state.log.num.partitions",
        50,
        "Number of partitions of __transaction_state; must not change after the topic is created.",
        minimum=1,
    ),
    _int(
        "transaction.state.log.replication.factor",
        1,
        "Replication factor of __transaction_state.",
        minimum=1,
        maximum=2**15 - 1,
        kind=ConfigType.SHORT,
    ),
    _int(
        "transaction.state.log.min.isr",
        1,
        "Minimum number of in-sync replicas for a write to __transaction_state.",
        minimum=1,
    ),
    _int(
        "transaction.state.log.segment.bytes",
        104857600,
        "Segment size of __transaction_state, in bytes.",
        minimum=1,
    ),
    ConfigKey(
        name="authorizer.class.name",
        type=ConfigType.STRING,
        default="",
        doc="Class that authorizes operations; if empty, clients may perform every operation.",
        choices=("", STANDARD_AUTHORIZER),
        empty_is_null=False,
    ),
    ConfigKey(
        name="super.users",
        type=ConfigType.STRING,
        default="",
        doc="Principals that may perform every operation, for example User:alice;User:bob.",
    ),
    _bool(
        "allow.everyone.if.no.acl.found",
        False,
        "Allow every operation on resources to which no ACL applies.",
    ),
    _bool(
        "unstable.api.versions.enable",
        False,
        "Enable API versions that are not yet stable in Kafka.",
    ),
)

_BY_NAME: Final = MappingProxyType({key.name: key for key in BROKER_CONFIGS})

CONFIG_KEYS: Final[Mapping[str, ConfigKey]] = MappingProxyType(
    {**UNIMPLEMENTED_CONFIGS, **SERVER_DEFAULTS, **SECURITY_KEYS, **_BY_NAME}
)
"""All broker configs by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The configuration of one broker.

    If `cluster_id` is None, the broker uses the cluster id in its storage, or generates a cluster
    id when it starts for the first time. `topic_defaults` contains the server-wide defaults of
    topic configs, keyed by topic config name. `security` contains the configs of listeners.
    `originals` contains all configs that are set, including those without an effect. The values may
    be secrets.
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
    producer_id_expiration_ms: int = 86400000
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
    group_consumer_assignors: str = "uniform,range"
    group_consumer_assignment_interval_ms: int = 1000
    group_consumer_min_assignment_interval_ms: int = 0
    group_consumer_max_assignment_interval_ms: int = 15000
    group_consumer_heartbeat_interval_ms: int = 5000
    group_consumer_min_heartbeat_interval_ms: int = 5000
    group_consumer_max_heartbeat_interval_ms: int = 15000
    group_consumer_max_size: int = INT32_MAX
    group_consumer_session_timeout_ms: int = 45000
    group_consumer_min_session_timeout_ms: int = 45000
    group_consumer_max_session_timeout_ms: int = 60000
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
    add_partitions_to_txn_retry_backoff_ms: int = 20
    add_partitions_to_txn_retry_backoff_max_ms: int = 100
    transaction_state_log_num_partitions: int = 50
    transaction_state_log_replication_factor: int = 1
    transaction_state_log_min_isr: int = 1
    transaction_state_log_segment_bytes: int = 104857600
    authorizer_class_name: str = ""
    super_users: str = ""
    allow_everyone_if_no_acl_found: bool = False
    unstable_api_versions_enable: bool = False
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    security: SecurityConfigs = field(default_factory=SecurityConfigs)
    originals: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for key in BROKER_CONFIGS:
            key.check(getattr(self, key.attribute))
        try:
            parse_super_users(self.super_users)
        except ValueError as error:
            raise InvalidBrokerConfigError(
                "super.users", f"Invalid value for broker config super.users: {error}."
            ) from None
        self._check_consumer_groups()
        delay_ms = self.failed_authentication_delay_ms
        if delay_ms >= self.connections_max_idle_ms:
            raise InvalidBrokerConfigError(
                "connection.failed.authentication.delay.ms",
                f"connection.failed.authentication.delay.ms={delay_ms} should always be less than "
                f"connections.max.idle.ms={self.connections_max_idle_ms} to prevent failed "
                "authentication responses from timing out.",
            )

    def _check_consumer_groups(self) -> None:
        """Check the limits of `group.consumer.*`, which apply to the broker's own values too."""
        for name in ("assignment.interval.ms", "heartbeat.interval.ms", "session.timeout.ms"):
            low, value, high = (
                getattr(self, f"group.consumer.{limit}{name}".replace(".", "_"))
                for limit in ("min.", "", "max.")
            )
            if not low <= value <= high:
                raise InvalidBrokerConfigError(
                    f"group.consumer.{name}",
                    f"group.consumer.{name}={value} must be between "
                    f"group.consumer.min.{name}={low} and group.consumer.max.{name}={high}.",
                )
        interval_ms = self.group_consumer_heartbeat_interval_ms
        timeout_ms = self.group_consumer_session_timeout_ms
        if interval_ms >= timeout_ms:
            raise InvalidBrokerConfigError(
                "group.consumer.heartbeat.interval.ms",
                f"group.consumer.heartbeat.interval.ms={interval_ms} must be less than "
                f"group.consumer.session.timeout.ms={timeout_ms}.",
            )

    @property
    def failed_authentication_delay_ms(self) -> int:
        """Return the value of `connection.failed.authentication.delay.ms`."""
        return int(self.security.value("connection.failed.authentication.delay.ms"))

    @classmethod
    def from_mapping(cls, configs: Mapping[str, str], **fields: Any) -> BrokerConfig:
        """Parse configs with Kafka's names; `fields` are additional fields of `BrokerConfig`.

        As in Kafka, unknown configs are ignored with a warning, except those of a listener, which
        could be less secure without them. Raises: InvalidBrokerConfigError with the name of the
        invalid config.
        """
        if RACK in configs:
            fields = {"rack": configs[RACK].strip() or None} | fields
        ignored = [
            name
            for name in configs
            if name in UNIMPLEMENTED_CONFIGS and name != RACK and _is_ignored(name, configs[name])
        ]
        if ignored:
            logger.warning(
                "These broker configs have no effect, because this broker does not implement "
                "them: %s", ", ".join(ignored),
            )  # fmt: skip
        for name in configs:
            if name not in CONFIG_KEYS and not is_security_config(name):
                if name.startswith(LISTENER_PREFIX):
                    raise InvalidBrokerConfigError(name, f"Unknown broker config {name!r}.")
                similar = ", ".join(get_close_matches(name, CONFIG_KEYS))
                logger.warning(
                    "The unknown broker config %r is ignored.%s",
                    name, f" Did you mean {similar}?" if similar else "",
                )  # fmt: skip
        return cls(**_fields(configs), **fields, originals=dict(configs))

    def with_overrides(self, configs: Mapping[str, str]) -> BrokerConfig:
        """Return the config with other values for some configs. `originals` does not change.

        Configs of listeners cannot be overridden. Raises: InvalidBrokerConfigError.
        """
        if not configs:
            return self
        fields = _fields(configs)
        del fields["security"]
        fields["topic_defaults"] = {**self.topic_defaults, **fields["topic_defaults"]}
        return dataclasses.replace(self, **fields)

    def static_configs(self) -> dict[str, str]:
        """Return the configs that are set at startup. The values may be secrets."""
        values = {
            key.name: key.text(value)
            for key in BROKER_CONFIGS
            if (value := getattr(self, key.attribute)) != key.default
        }
        for name, value in self.topic_defaults.items():
            synonyms = TOPIC_CONFIG_SYNONYMS[name]
            if not any(synonym in self.originals for synonym in synonyms):
                values[synonyms[0]] = value
        if self.rack is not None:
            values[RACK] = self.rack
        set_values = {name: value for name, value in values.items() if value is not None}
        security = {name: str(value) for name, value in self.security.values.items()}
        return {**set_values, **security, **self.originals}

    def authorizer(self, acls: AclCache) -> StandardAuthorizer | None:
        """Return an authorizer that uses these ACLs, or None if no authorizer is configured."""
        if not self.authorizer_class_name:
            return None
        return StandardAuthorizer(
            acls=acls,
            super_users=parse_super_users(self.super_users),
            allows_everyone_if_no_acl_found=self.allow_everyone_if_no_acl_found,
        )

    def topic_config_defaults(self) -> dict[str, str]:
        """Return the server-wide defaults of topic configs that differ from Kafka's defaults."""
        defaults = dict(self.topic_defaults)
        if self.message_max_bytes != _BY_NAME["message.max.bytes"].default:
            defaults["max.message.bytes"] = str(self.message_max_bytes)
        return defaults


def _fields(configs: Mapping[str, str]) -> dict[str, Any]:
    """Parse the configs that have an effect. Raises: InvalidBrokerConfigError."""
    fields: dict[str, Any] = {}
    defaults: dict[str, tuple[int, str]] = {}
    security: dict[str, str] = {}
    for name, text in configs.items():
        if name in _BY_NAME:
            fields[_BY_NAME[name].attribute] = _BY_NAME[name].parse(text)
        elif name in TOPIC_DEFAULTS:
            topic_name, factor = TOPIC_DEFAULTS[name]
            value = _topic_default(name, topic_name, text, factor)
            # As in Kafka, ms takes precedence over minutes, and minutes over hours.
            rank = TOPIC_CONFIG_SYNONYMS[topic_name].index(name)
            defaults[topic_name] = min(defaults.get(topic_name, (rank, value)), (rank, value))
        elif is_security_config(name):
            security[name] = text
    fields["topic_defaults"] = {name: value for name, (_, value) in defaults.items()}
    fields["security"] = SecurityConfigs.from_mapping(security)
    return fields


def _is_ignored(name: str, text: str) -> bool:
    """Return whether a config that is not implemented differs from its default.

    Raises: InvalidBrokerConfigError if the value is invalid or must not be ignored.
    """
    key = UNIMPLEMENTED_CONFIGS[name]
    if str(key.parse(text)).lower() == str(key.default).lower():
        return False
    if name.startswith(_SECURITY_PREFIXES):
        raise InvalidBrokerConfigError(
            name,
            f"This broker does not implement the broker config {name}, and the cluster could be "
            "less secure without it. Remove the config.",
        )
    return True


def _topic_default(name: str, topic_name: str, text: str, factor: int) -> str:
    """Convert a server-wide default to the unit of its topic config and validate it."""
    try:
        value = text if factor == 1 else str(int(text) * factor if int(text) >= 0 else -1)
        return check_topic_configs({topic_name: value})[topic_name]
    except (ValueError, ApiError) as error:
        raise InvalidBrokerConfigError(
            name, f"Invalid value {text!r} for broker config {name}: {error}."
        ) from None
