"""The interface of the controller's handlers: their arguments and results.

Purpose: the counterpart of `broker_ref.api.contract`: each `kNN_*.py` here exports `API`, whose
`handle` takes the `ControllerContext`, the call and the request message, and returns the response
message or a `Wait`. Invariant: handlers have no state. Must not know: frames, connections, and
whether a broker forwarded the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Call, Wait
from broker_ref.config import BrokerConfig
from broker_ref.controller.controller import Controller
from broker_ref.controller.metadata import ClusterMetadata

__all__ = ["NO_THROTTLE_MS", "Api", "Call", "ControllerContext", "Wait"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """The components of the controller's node that handlers use, and its APIs."""

    config: BrokerConfig
    cluster_id: str
    controller: Controller
    apis: Callable[[], tuple[Api[ControllerContext], ...]]

    @property
    def metadata(self) -> ClusterMetadata:
        """The cluster metadata."""
        return self.controller.metadata
