"""The interface of the controller's handlers: their arguments and results.

This module is the counterpart of `broker_ref.api.contract`. Each `kNN_*.py` module exports `API`.
Its `handle` function takes a `ControllerContext`, a `Call` and the request message, and returns the
response message or a `Wait`. Handlers have no state.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Call, Wait, on_cluster
from broker_ref.config import BrokerConfig
from broker_ref.controller.controller import Controller
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.frozen import dataclass
from broker_ref.security.authorizer import StandardAuthorizer

__all__ = ["NO_THROTTLE_MS", "Api", "Call", "ControllerContext", "Wait", "on_cluster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """The components of the controller node that handlers use, and the APIs of the node.

    `authorizer` is None if no authorizer is configured.
    """

    config: BrokerConfig
    cluster_id: str
    controller: Controller
    apis: Callable[[], tuple[Api[ControllerContext], ...]]
    authorizer: StandardAuthorizer | None = None

    @property
    def metadata(self) -> ClusterMetadata:
        """The metadata of the cluster."""
        return self.controller.metadata
