"""The `__transaction_state` topic, which a broker creates when a transactional id is first used.

The topic has the same configs as in Kafka, except that `compression.type` is `producer` instead of
`uncompressed`. In both cases, brokers write uncompressed records. Source:
`TransactionStateManager.transactionTopicConfigs`.
"""

from __future__ import annotations

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import TRANSACTION_STATE_TOPIC
from broker_ref.controller.topics import NewTopic


def transaction_state_topic(config: BrokerConfig) -> NewTopic:
    """Return the topic in which transaction coordinators store transactional ids."""
    return NewTopic(
        name=TRANSACTION_STATE_TOPIC,
        partition_count=config.transaction_state_log_num_partitions,
        replication_factor=config.transaction_state_log_replication_factor,
        configs={
            "unclean.leader.election.enable": "false",
            "cleanup.policy": "compact",
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
        },
    )
