"""The configuration of a broker, with Kafka's config names.

The table in `broker_ref.broker_configs` is used to parse configs and to reject invalid values. The
server-wide defaults of topic configs (such as `log.retention.ms`) are stored under their
topic-level names (see `broker_ref.server_defaults`). Invariant: a `BrokerConfig` contains only
valid values.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import field
from difflib import get_close_matches
from typing import Any, Final

from broker_ref.broker_configs import BROKER_CONFIGS, BY_NAME, CONFIG_KEYS
from broker_ref.config_keys import (
    INT32_MAX,
    ConfigKey,
    InvalidBrokerConfigError,
)
from broker_ref.config_numbers import parse_integer
from broker_ref.frozen import dataclass
from broker_ref.log.config import InvalidTopicConfigError, check_combination
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import AclCache
from broker_ref.security.authorizer import (
    StandardAuthorizer,
    parse_super_users,
)
from broker_ref.security.configs import (
    LISTENER_PREFIX,
    SecurityConfigs,
    is_security_config,
)
from broker_ref.server_defaults import TOPIC_CONFIG_SYNONYMS, TOPIC_DEFAULTS
from broker_ref.topic_configs import check_topic_configs
from broker_ref.unimplemented_configs import UNIMPLEMENTED_CONFIGS

__all__ = ["BrokerConfig", "ConfigKey", "InvalidBrokerConfigError"]

RACK: Final = "broker.rack"
_SECURITY_PREFIXES: Final = ("ssl.", "sasl.", "principal.", "security.")
"""Prefixes of configs that are rejected if they are unimplemented and differ from the default."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The configuration of one broker.

    If `cluster_id` is None, the broker uses the cluster id in its storage, or generates a cluster
    id when it starts for the first time. `topic_defaults` contains the server-wide defaults of
    topic configs, keyed by topic config name. `security` contains the configs of listeners.
    `originals` contains all configs that are set, including configs that have no effect. The values
    may be sensitive.
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
    group_consumer_migration_policy: str = "bidirectional"
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
        if 0 <= self.connections_max_idle_ms <= delay_ms:
            raise InvalidBrokerConfigError(
                "connection.failed.authentication.delay.ms",
                f"connection.failed.authentication.delay.ms={delay_ms} should always be less than "
                f"connections.max.idle.ms={self.connections_max_idle_ms} to prevent failed "
                "authentication responses from timing out.",
            )

    def _check_consumer_groups(self) -> None:
        """Check that the values of `group.consumer.*` are within the broker's own limits."""
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
        """Parse configs with Kafka's names. `fields` contains other fields of `BrokerConfig`.

        As in Kafka, unknown configs are ignored with a warning. Unknown configs of a listener are
        rejected, because the listener could be less secure without them. Raises:
        InvalidBrokerConfigError with the name of the invalid config.
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
                    "Ignoring the unknown broker config %r.%s",
                    name, f" Did you mean {similar}?" if similar else "",
                )  # fmt: skip
        parsed = _fields(configs)
        try:
            check_combination(parsed["topic_defaults"])
        except InvalidTopicConfigError as error:
            name = TOPIC_CONFIG_SYNONYMS[error.name][0]
            raise InvalidBrokerConfigError(name, f"{error}.") from None
        return cls(**parsed, **fields, originals=dict(configs))

    def with_overrides(self, configs: Mapping[str, str]) -> BrokerConfig:
        """Return a copy with some values replaced. `originals` does not change.

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
        """Return an authorizer that uses `acls`, or None if no authorizer is configured."""
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
        if self.message_max_bytes != BY_NAME["message.max.bytes"].default:
            defaults["max.message.bytes"] = str(self.message_max_bytes)
        return defaults


def _fields(configs: Mapping[str, str]) -> dict[str, Any]:
    """Parse the configs that have an effect. Raises: InvalidBrokerConfigError."""
    fields: dict[str, Any] = {}
    defaults: dict[str, tuple[int, str]] = {}
    security: dict[str, str] = {}
    for name, text in configs.items():
        if name in BY_NAME:
            fields[BY_NAME[name].attribute] = BY_NAME[name].parse(text)
        elif name in TOPIC_DEFAULTS:
            topic_name, factor = TOPIC_DEFAULTS[name]
            value = _topic_default(name, topic_name, text, factor)
            # As in Kafka, ms takes precedence over minutes, and minutes over hours.
            rank = TOPIC_CONFIG_SYNONYMS[topic_name].index(name)
            defaults[topic_name] = min(defaults.get(topic_name, (rank, value)), (rank, value))
        elif is_security_config(name):
            security[name] = text
    fields["topic_defaults"] = {name: value for name, (_, value) in defaults.items()}
    if fields["topic_defaults"].get("retention.ms") == "0":  # Kafka: `KafkaConfig.validateValues`.
        name = TOPIC_CONFIG_SYNONYMS["retention.ms"][defaults["retention.ms"][0]]
        raise InvalidBrokerConfigError(
            name, f"Invalid value 0 for config {name}: must be positive, or -1 for no limit."
        )
    fields["security"] = SecurityConfigs.from_mapping(security)
    return fields


def _is_ignored(name: str, text: str) -> bool:
    """Return whether the value of an unimplemented config differs from the default.

    Raises: InvalidBrokerConfigError if the value is invalid, or if the cluster could be less secure
    without the config.
    """
    key = UNIMPLEMENTED_CONFIGS[name]
    if str(key.parse(text)).lower() == str(key.default).lower():
        return False
    if name.startswith(_SECURITY_PREFIXES):
        raise InvalidBrokerConfigError(
            name,
            f"This broker does not implement the broker config {name}. The config is rejected, "
            "because ignoring it could make the cluster less secure. Remove the config.",
        )
    return True


def _topic_default(name: str, topic_name: str, text: str, factor: int) -> str:
    """Convert a server-wide default to the unit of its topic config, and validate the value."""
    try:
        value = text
        if topic_name == "retention.ms":
            value = str(max(parse_integer(text) * factor, -1))
        elif factor != 1:
            value = str(parse_integer(text) * factor)
        return check_topic_configs({topic_name: value}, defaults={})[topic_name]
    except (ValueError, ApiError) as error:
        raise InvalidBrokerConfigError(
            name, f"Invalid value {text!r} for broker config {name}: {error}."
        ) from None
