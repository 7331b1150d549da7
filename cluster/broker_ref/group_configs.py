"""The configs of groups (type GROUP, KIP-848): their limits and their effective values.

If a config is not set on a group, the group uses the broker config with the prefix `group.`. The
configs of share groups and streams groups are stored and described, but they have no effect.
Source: Kafka's `GroupConfig` and `GroupConfigManager`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.broker_configs import CONFIG_KEYS
from broker_ref.config import BrokerConfig
from broker_ref.config_keys import ConfigKey, InvalidBrokerConfigError
from broker_ref.protocol.errors import ApiError
from broker_ref.topic_configs import ConfigType

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"


def _int(name: str, minimum: int, doc: str) -> ConfigKey:
    default = int(CONFIG_KEYS[broker_config(name)].default)
    return ConfigKey(name=name, type=ConfigType.INT, default=default, minimum=minimum, doc=doc)


def broker_config(name: str) -> str:
    """Return the broker config that contains the default of a group config."""
    return f"group.{name}"


_WITHOUT_EFFECT: Final = "This config has no effect: this broker does not implement it."
_INTERVAL: Final = "Interval between the heartbeats of the members."
_TIMEOUT: Final = "Time without a heartbeat after which a member is removed from the group."

GROUP_CONFIG_KEYS: Final = MappingProxyType(
    {
        key.name: key
        for key in (
            _int(SESSION_TIMEOUT, 1, _TIMEOUT),
            _int(HEARTBEAT_INTERVAL, 1, _INTERVAL),
            _int(ASSIGNMENT_INTERVAL, 0, "Minimum time between two target assignments."),
            _int("share.session.timeout.ms", 1, _WITHOUT_EFFECT),
            _int("share.heartbeat.interval.ms", 1, _WITHOUT_EFFECT),
            _int("share.assignment.interval.ms", 0, _WITHOUT_EFFECT),
            _int("share.record.lock.duration.ms", 1000, _WITHOUT_EFFECT),
            _int("share.delivery.count.limit", 2, _WITHOUT_EFFECT),
            _int("share.partition.max.record.locks", 100, _WITHOUT_EFFECT),
            ConfigKey(
                name="share.auto.offset.reset",
                type=ConfigType.STRING,
                default="latest",
                doc=_WITHOUT_EFFECT,
            ),
            ConfigKey(
                name="share.isolation.level",
                type=ConfigType.STRING,
                default="read_uncommitted",
                doc=_WITHOUT_EFFECT,
                choices=("read_committed", "read_uncommitted"),
            ),
            ConfigKey(
                name="share.renew.acknowledge.enable",
                type=ConfigType.BOOLEAN,
                default=True,
                doc=_WITHOUT_EFFECT,
            ),
            _int("streams.session.timeout.ms", 1, _WITHOUT_EFFECT),
            _int("streams.heartbeat.interval.ms", 1, _WITHOUT_EFFECT),
            _int("streams.assignment.interval.ms", 0, _WITHOUT_EFFECT),
            _int("streams.num.standby.replicas", 0, _WITHOUT_EFFECT),
            _int("streams.initial.rebalance.delay.ms", 0, _WITHOUT_EFFECT),
        )
    }
)
"""The configs of groups by name."""

_KINDS: Final = ("consumer", "share", "streams")
_OFFSET_RESET: Final = re.compile(
    r"earliest|latest|by_duration:P(?=.)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?"
)


def check_group_configs(configs: Mapping[str, str | None], config: BrokerConfig) -> dict[str, str]:
    """Validate the configs of a group against the broker configs, and return those that are set.

    Raises: ApiError (INVALID_CONFIG).
    """
    checked = {name: value for name, value in configs.items() if value is not None}
    for name in configs:
        if name not in GROUP_CONFIG_KEYS:
            raise _invalid(f"Unknown group config name: {name}")
    if not _OFFSET_RESET.fullmatch(checked.get("share.auto.offset.reset", "latest")):
        raise _invalid(
            "The value of share.auto.offset.reset must be earliest, latest or "
            "by_duration:<PnDTnHnMn.nS>."
        )
    brokers = config.static_configs()
    try:
        for name, value in checked.items():
            GROUP_CONFIG_KEYS[name].parse(value)
            _check_limits(name, value, brokers)
    except InvalidBrokerConfigError as error:
        raise _invalid(str(error)) from error
    for kind in _KINDS:
        timeout, interval = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        timeout_ms, interval_ms = (
            int(checked.get(name, _of_brokers(broker_config(name), brokers)))
            for name in (timeout, interval)
        )
        if timeout_ms <= interval_ms:
            raise _invalid(f"{timeout} must be greater than {interval}.")
    return checked


def effective_value(name: str, own: Mapping[str, str], config: BrokerConfig) -> int:
    """Return the effective value of a group config. `own` contains configs set on the group.

    If a value is outside the limits that the broker configs set, return the nearest limit, as in
    Kafka's `GroupConfig.evaluate`.
    """
    kind, rest = name.split(".", 1)
    value, low, high = (
        int(getattr(config, f"group.{kind}.{limit}{rest}".replace(".", "_")))
        for limit in ("", "min.", "max.")
    )
    return value if name not in own else min(max(int(own[name]), low), high)


def _check_limits(name: str, value: str, brokers: Mapping[str, str]) -> None:
    """Check a value against the configs `group.<kind>.min.*` and `group.<kind>.max.*`, if any."""
    kind, rest = name.split(".", 1)
    low = f"group.{kind}.min.{rest}"
    high = f"group.{kind}.max.{rest.removeprefix('num.')}"
    if low in CONFIG_KEYS and int(value) < int(_of_brokers(low, brokers)):
        raise _invalid(f"{name} must be greater than or equal to {low}.")
    if high in CONFIG_KEYS and int(value) > int(_of_brokers(high, brokers)):
        raise _invalid(f"{name} must be less than or equal to {high}.")


def _of_brokers(name: str, brokers: Mapping[str, str]) -> str:
    return brokers.get(name, str(CONFIG_KEYS[name].default))


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.invalid_config, message)
