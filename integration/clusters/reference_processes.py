"""The `reference-processes` backend, which runs the reference cluster as OS processes.

Tests use it to send SIGKILL and SIGSTOP to nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from integration.clusters import reference
from integration.clusters.base import Links
from integration.clusters.node_cluster import NodeCluster, Nodes, Plan
from integration.clusters.node_process import NodeProcess

if TYPE_CHECKING:
    from integration.clusters.security import Security


class ReferenceProcessesCluster(NodeCluster):
    """A cluster of `python -m broker_ref` processes, one per node."""

    def __init__(
        self,
        *,
        brokers: int = 1,
        configs: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
        features: Mapping[str, int] | None = None,
        links: Links | None = None,
        security: Security | None = None,
        program: Sequence[str] = ("-m", "broker_ref"),
    ) -> None:
        """Start the cluster. `program` contains the Python arguments that run `broker_ref`."""
        self._program = tuple(program)
        self._configs = {**reference.settings(brokers), **(configs or {})}
        self._racks = dict(racks or {})
        self._features = dict(features or {})
        super().__init__(brokers=brokers, links=links, prefix="broker_ref-", security=security)

    @property
    def backend(self) -> str:
        return "reference-processes"

    @property
    def version(self) -> str:
        return "broker_ref"

    def data_directory(self, broker_id: int) -> Path:
        """Return the log directory of a broker."""
        self._check_id(broker_id)
        return self._directory / f"broker-{broker_id}"

    def _make_nodes(self, plan: Plan) -> Nodes:
        return Nodes(
            controller=self._node(
                "controller",
                "controller",
                *(
                    word
                    for name, version in self._features.items()
                    for word in ("--feature", f"{name}={version}")
                ),
                *(
                    word
                    for credential in self._scram_arguments()
                    for word in ("--add-scram", credential)
                ),
                data=self._directory / "controller",
                listener=plan.controller,
            ),
            brokers={i: self._broker_node(i, plan) for i in self.broker_ids},
        )

    def _broker_node(self, broker_id: int, plan: Plan) -> NodeProcess:
        host, _, port = plan.advertised[broker_id].rpartition(":")
        options = ["--id", str(broker_id), "--controller", plan.controller_addresses[broker_id]]
        options += ["--advertised-host", host, "--advertised-port", port]
        if broker_id in self._racks:
            options += ["--rack", self._racks[broker_id]]
        listener = plan.listeners[broker_id]
        if self._secured is not None:
            secured = self._secured.broker_configs(
                broker_id, listener, advertised=plan.advertised[broker_id], links=self._links
            )
            options += [word for c in secured.items() for word in ("--config", "=".join(c))]
        data = self.data_directory(broker_id)
        return self._node(f"broker {broker_id}", "node", *options, data=data, listener=listener)

    def _scram_arguments(self) -> list[str]:
        return [] if self._secured is None else self._secured.scram_arguments()

    def _node(self, name: str, role: str, *options: str, data: Path, listener: str) -> NodeProcess:
        host, _, port = listener.rpartition(":")
        command = [sys.executable, *self._program, role, *options]
        command += ["--data", str(data), "--host", host, "--port", port]
        for key, value in self._configs.items():
            command += ["--config", f"{key}={value}"]
        return NodeProcess(name, command, directory=self._directory)
