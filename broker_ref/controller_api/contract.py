"""What a handler of the controller gets, and what it can answer.

Purpose: the controller's twin of `broker_ref.api.contract`: every `kNN_*.py` here exports `API`,
whose `handle` takes the `ControllerContext`, the call and the request message, and returns the
response message or a `Wait`. Invariant: handlers keep no state. What it must not know: frames,
connections, and whether a client asks or a broker for it.
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
    """The parts of the controller's node that handlers use, and the APIs that it serves."""

    config: BrokerConfig
    cluster_id: str
    controller: Controller
    apis: Callable[[], tuple[Api[ControllerContext], ...]]

    @property
    def metadata(self) -> ClusterMetadata:
        """The cluster as it is."""
        return self.controller.metadata
