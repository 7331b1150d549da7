"""`__transaction_state` as a broker makes it when a transactional id first needs it.

Purpose: the topic's configs. `compression.type` stays `producer`, where Kafka has `uncompressed`:
what brokers write to it is not compressed. What it must not know: who needs it.
Source: `TransactionStateManager.transactionTopicConfigs`.
"""

from __future__ import annotations

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import TRANSACTION_STATE_TOPIC
from broker_ref.controller.topics import NewTopic


def transaction_state_topic(config: BrokerConfig) -> NewTopic:
    """The topic that coordinators keep transactional ids in."""
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
