"""Tests of the effective configs of groups."""

from __future__ import annotations

from broker_ref.config import BrokerConfig
from broker_ref.group_configs import HEARTBEAT_INTERVAL, SESSION_TIMEOUT, effective_value


def test_a_value_outside_the_current_limits_is_replaced_with_the_limit() -> None:
    """The limits may have changed since the value was stored."""
    config = BrokerConfig.from_mapping({"group.consumer.max.session.timeout.ms": "50000"})
    assert effective_value(SESSION_TIMEOUT, {}, config) == 45_000
    assert effective_value(SESSION_TIMEOUT, {SESSION_TIMEOUT: "48000"}, config) == 48_000
    assert effective_value(SESSION_TIMEOUT, {SESSION_TIMEOUT: "55000"}, config) == 50_000
    assert effective_value(HEARTBEAT_INTERVAL, {HEARTBEAT_INTERVAL: "1"}, config) == 5_000
