"""The broker APIs, one module per Kafka API key. `APIS` maps each key to its API."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from broker_ref.api import (
    k00_produce,
    k01_fetch,
    k02_list_offsets,
    k03_metadata,
    k08_offset_commit,
    k09_offset_fetch,
    k10_find_coordinator,
    k11_join_group,
    k12_heartbeat,
    k13_leave_group,
    k14_sync_group,
    k15_describe_groups,
    k16_list_groups,
    k17_sasl_handshake,
    k18_api_versions,
    k21_delete_records,
    k22_init_producer_id,
    k23_offset_for_leader_epoch,
    k24_add_partitions_to_txn,
    k25_add_offsets_to_txn,
    k26_end_txn,
    k27_write_txn_markers,
    k28_txn_offset_commit,
    k29_describe_acls,
    k32_describe_configs,
    k35_describe_log_dirs,
    k36_sasl_authenticate,
    k42_delete_groups,
    k47_offset_delete,
    k50_describe_user_scram_credentials,
    k60_describe_cluster,
    k61_describe_producers,
    k65_describe_transactions,
    k66_list_transactions,
    k75_describe_topic_partitions,
)

APIS: Final = MappingProxyType(
    {
        module.API.key: module.API
        for module in (
            k00_produce,
            k01_fetch,
            k02_list_offsets,
            k03_metadata,
            k08_offset_commit,
            k09_offset_fetch,
            k10_find_coordinator,
            k11_join_group,
            k12_heartbeat,
            k13_leave_group,
            k14_sync_group,
            k15_describe_groups,
            k16_list_groups,
            k17_sasl_handshake,
            k18_api_versions,
            k21_delete_records,
            k22_init_producer_id,
            k23_offset_for_leader_epoch,
            k24_add_partitions_to_txn,
            k25_add_offsets_to_txn,
            k26_end_txn,
            k27_write_txn_markers,
            k28_txn_offset_commit,
            k29_describe_acls,
            k32_describe_configs,
            k36_sasl_authenticate,
            k42_delete_groups,
            k47_offset_delete,
            k35_describe_log_dirs,
            k50_describe_user_scram_credentials,
            k60_describe_cluster,
            k61_describe_producers,
            k65_describe_transactions,
            k66_list_transactions,
            k75_describe_topic_partitions,
        )
    }
)
