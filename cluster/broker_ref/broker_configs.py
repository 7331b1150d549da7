"""The tables of the configs that a broker implements, and of all configs that it accepts.

The tables contain the name, type, default, limits, documentation and update mode of each config.
`broker_ref.config` parses the configs. Other modules define the server-wide defaults of topic
configs (`broker_ref.server_defaults`), the configs of listeners (`broker_ref.security.configs`),
and the configs that have no effect (`broker_ref.unimplemented_configs`). Source: Kafka's
`AbstractKafkaConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from broker_ref.config_keys import INT32_MAX, INT64_MAX, ConfigKey, UpdateMode
from broker_ref.security.authorizer import STANDARD_AUTHORIZER
from broker_ref.security.configs import SECURITY_KEYS
from broker_ref.server_defaults import SERVER_DEFAULTS
from broker_ref.topic_configs import ConfigType
from broker_ref.unimplemented_configs import UNIMPLEMENTED_CONFIGS


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
        "Time without a request after which a connection is closed; no limit if negative.",
        minimum=-INT64_MAX,
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
    ConfigKey(
        name="group.consumer.migration.policy",
        type=ConfigType.STRING,
        default="bidirectional",
        doc="Whether a group with members is converted between the classic protocol and the "
        "consumer protocol (KIP-848).",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
        ignores_case=True,
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

BY_NAME: Final = MappingProxyType({key.name: key for key in BROKER_CONFIGS})
"""The configs that the broker implements, except those of topics and listeners, by name."""

CONFIG_KEYS: Final[Mapping[str, ConfigKey]] = MappingProxyType(
    {**UNIMPLEMENTED_CONFIGS, **SERVER_DEFAULTS, **SECURITY_KEYS, **BY_NAME}
)
"""All broker configs by name."""
