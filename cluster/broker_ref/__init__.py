"""A reference Kafka cluster in Python that speaks Kafka's wire protocol.

Run the cluster with `python -m broker_ref --port 9092`, or in a test:

    with broker_ref.Cluster() as cluster:
        ...  # connect any Kafka client to cluster.bootstrap_servers

`Cluster(security=broker_ref.Security())` creates a secured cluster.

Importing this package must not import any of its modules, because pytest imports the package in
every project that has it installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker_ref.io.cluster import Cluster, ClusterError
    from broker_ref.security.development import ClientSettings, Security

__all__ = ["ClientSettings", "Cluster", "ClusterError", "Security"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from broker_ref.io import cluster  # noqa: PLC0415 (see the module's docstring)

        return getattr(cluster, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
