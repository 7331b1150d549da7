"""The rules for `min.insync.replicas` while eligible leader replicas are enabled (KIP-966).

The controller, which calculates the eligible replicas, and all leaders must use the same
`min.insync.replicas`. Invariants: while the feature `eligible.leader.replicas.version` is
finalized, the value is set in a cluster-wide dynamic config, this config is not removed, and no
broker has its own value. During this time, a change to the value clears the eligible replicas of
the affected topics. Source: Kafka's `ConfigurationControlManager`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.controller.records import ClearElrRecord, ConfigRecord, ConfigResourceType
from broker_ref.protocol.errors import ApiError
from broker_ref.topic_configs import MIN_INSYNC_REPLICAS, min_insync_replicas

_ALL_BROKERS = (ConfigResourceType.BROKER, "")


def safety_records(metadata: ClusterMetadata, config: BrokerConfig) -> list[ConfigRecord]:
    """Return the records that must be written before eligible leader replicas are enabled.

    If no cluster-wide `min.insync.replicas` is set, the value in the controller's config becomes
    the cluster-wide value. The values of individual brokers are removed
    (`maybeGenerateElrSafetyRecords`).
    """
    records = []
    if MIN_INSYNC_REPLICAS not in metadata.configs(*_ALL_BROKERS):
        value = min_insync_replicas(config.topic_config_defaults())
        records.append(_record("", str(value)))
    records += [
        _record(name, None)
        for (resource_type, name), configs in metadata.resource_configs.items()
        if resource_type == ConfigResourceType.BROKER and name and MIN_INSYNC_REPLICAS in configs
    ]
    return records


def check_change(
    metadata: ClusterMetadata,
    resource_type: ConfigResourceType,
    name: str,
    changed: Mapping[str, str | None],
) -> None:
    """Raise ApiError (INVALID_CONFIG) if the changed configs of a resource violate an invariant.

    The value of a removed config is None.
    """
    is_of_brokers = resource_type is ConfigResourceType.BROKER and MIN_INSYNC_REPLICAS in changed
    if not metadata.is_elr_enabled or not is_of_brokers:
        return
    if name:
        raise ApiError(
            ErrorCode.invalid_config,
            f"Broker-level {MIN_INSYNC_REPLICAS} cannot be altered while ELR is enabled.",
        )
    if changed[MIN_INSYNC_REPLICAS] is None:
        raise ApiError(
            ErrorCode.invalid_config,
            f"Cluster-level {MIN_INSYNC_REPLICAS} cannot be removed while ELR is enabled.",
        )


def clearing_records(
    metadata: ClusterMetadata, records: Iterable[ConfigRecord]
) -> list[ClearElrRecord]:
    """Return the records that clear the ELR of topics whose `min.insync.replicas` changes."""
    if not metadata.is_elr_enabled:
        return []
    changed = [record for record in records if record.name == MIN_INSYNC_REPLICAS]
    found = [
        ClearElrRecord(topic=record.resource_name)
        for record in changed
        if record.resource_type == ConfigResourceType.TOPIC
    ]
    if any((record.resource_type, record.resource_name) == _ALL_BROKERS for record in changed):
        found.append(ClearElrRecord(topic=""))
    return found


def effective_min_isr(
    metadata: ClusterMetadata, topic: str, defaults: Mapping[str, str]
) -> int | None:
    """Return the effective `min.insync.replicas`, or None if the ELR is disabled.

    The value is limited to the number of replicas of the first partition
    (`getTopicEffectiveMinIsr`).
    """
    if not metadata.is_elr_enabled:
        return None
    found = metadata.topics[topic]
    min_isr = min_insync_replicas({**defaults, **found.configs})
    return min(min_isr, len(found.partitions[0].replicas))


def _record(name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ConfigResourceType.BROKER,
        resource_name=name,
        name=MIN_INSYNC_REPLICAS,
        value=value,
    )
