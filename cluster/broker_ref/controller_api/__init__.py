"""The APIs of the controller, one module per Kafka API key.

`FORWARDED` contains the API keys of client requests that brokers forward to the controller. `APIS`
also contains the APIs for requests that brokers send on their own behalf.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from broker_ref.controller_api import (
    k01_fetch,
    k18_api_versions,
    k19_create_topics,
    k20_delete_topics,
    k30_create_acls,
    k31_delete_acls,
    k33_alter_configs,
    k37_create_partitions,
    k43_elect_leaders,
    k44_incremental_alter_configs,
    k45_alter_partition_reassignments,
    k46_list_partition_reassignments,
    k51_alter_user_scram_credentials,
    k56_alter_partition,
    k57_update_features,
    k59_fetch_snapshot,
    k60_describe_cluster,
    k62_broker_registration,
    k63_broker_heartbeat,
    k64_unregister_broker,
    k67_allocate_producer_ids,
)

_CLIENTS: Final = (
    k19_create_topics,
    k20_delete_topics,
    k30_create_acls,
    k31_delete_acls,
    k33_alter_configs,
    k37_create_partitions,
    k43_elect_leaders,
    k44_incremental_alter_configs,
    k45_alter_partition_reassignments,
    k46_list_partition_reassignments,
    k51_alter_user_scram_credentials,
    k57_update_features,
    k64_unregister_broker,
)

_BROKERS: Final = (
    k01_fetch,
    k18_api_versions,
    k56_alter_partition,
    k59_fetch_snapshot,
    k60_describe_cluster,
    k62_broker_registration,
    k63_broker_heartbeat,
    k67_allocate_producer_ids,
)

FORWARDED: Final = frozenset(module.API.key for module in _CLIENTS)

APIS: Final = MappingProxyType({module.API.key: module.API for module in _CLIENTS + _BROKERS})
