"""The dynamic configs of brokers (KIP-226).

| precedence | source                | set by                                            |
| ---------- | --------------------- | ------------------------------------------------- |
| 1          | DYNAMIC_BROKER        | IncrementalAlterConfigs for one broker            |
| 2          | DYNAMIC_DEFAULT       | IncrementalAlterConfigs for all brokers (name "") |
| 3          | STATIC_BROKER         | the configuration with which the broker starts    |
| 4          | DEFAULT               | Kafka                                             |

This module validates changes to the configs of brokers, and calculates the effective configs.
Invariant: invalid dynamic configs do not change the effective configs. Sources:
`kafka.server.DynamicBrokerConfig`, `kafka.server.ConfigHelper`.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.broker_configs import CONFIG_KEYS
from broker_ref.config import BrokerConfig
from broker_ref.config_keys import INT64_MAX, ConfigKey, InvalidBrokerConfigError, UpdateMode
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.security.configs import LISTENER_PREFIX
from broker_ref.server_defaults import TOPIC_DEFAULTS
from broker_ref.topic_configs import ConfigType

LEADER_THROTTLE: Final = "leader.replication.throttled.rate"
FOLLOWER_THROTTLE: Final = "follower.replication.throttled.rate"

_CLUSTER_WIDE_OF_LISTENERS: Final = (
    "max.connections",
    "max.connection.creation.rate",
    "num.network.threads",
)
"""The configs that can be changed for all brokers even if they have a listener prefix."""

logger = logging.getLogger(__name__)


def _quota(name: str, doc: str) -> ConfigKey:
    return ConfigKey(
        name=name,
        type=ConfigType.LONG,
        default=INT64_MAX,
        maximum=INT64_MAX,
        doc=doc,
        update_mode=UpdateMode.CLUSTER,
    )


DYNAMIC_ONLY_CONFIGS: Final = MappingProxyType(
    {
        key.name: key
        for key in (
            _quota(LEADER_THROTTLE, "Rate limit of throttled replicas on leaders, in bytes/s."),
            _quota(FOLLOWER_THROTTLE, "Rate limit of throttled replicas on followers, in bytes/s."),
            _quota(
                "replica.alter.log.dirs.io.max.bytes.per.second",
                "Rate limit of moves between log directories. This config has no effect.",
            ),
        )
    }
)
"""Configs that can be set only while the broker runs (Kafka's `QuotaConfig.brokerQuotaConfigs`)."""


class ConfigSource(IntEnum):
    """The source of a config value, with its number in DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """A value of a config at one level of precedence."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLevels:
    """The configs of a broker at each level of precedence. The values may be secrets."""

    own: Mapping[str, str]
    cluster: Mapping[str, str]
    static: Mapping[str, str]

    def names(self) -> Iterable[str]:
        """Return the names of all configs that are set."""
        return dict.fromkeys((*self.own, *self.cluster, *self.static))

    def synonyms(self, target: str, names: Sequence[str]) -> tuple[Synonym, ...]:
        """Return the values of `target` and its synonyms, starting with its effective value.

        The values are sorted by precedence. As in `ConfigHelper.configSynonyms`, all values before
        the effective value of `target` are omitted.
        """
        found = [
            Synonym(name=name, value=values[name], source=source)
            for values, source in (
                (self.own, ConfigSource.DYNAMIC_BROKER_CONFIG),
                (self.cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
                (self.static, ConfigSource.STATIC_BROKER_CONFIG),
                (_DEFAULTS, ConfigSource.DEFAULT_CONFIG),
            )
            for name in names
            if name in values
        ]
        return tuple(itertools.dropwhile(lambda each: each.name != target, found))


def _defaults() -> dict[str, str]:
    return {
        key.name: text
        for key in CONFIG_KEYS.values()
        if (text := key.text(key.default)) is not None
    }


_DEFAULTS: Final = MappingProxyType(_defaults())


class DynamicBrokerConfig:
    """The effective config of one broker. It changes when a dynamic config is set or removed."""

    def __init__(self, static: BrokerConfig) -> None:
        self.static = static
        self.current = static
        self.throttled_rates: Mapping[str, int] = {}
        self._static_configs = static.static_configs()
        self._stored: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
        self.levels = ConfigLevels(own={}, cluster={}, static=self._static_configs)

    def update(self, *, own: Mapping[str, str], cluster: Mapping[str, str]) -> bool:
        """Apply the dynamic configs of this broker and the dynamic cluster-wide defaults.

        Return whether the dynamic configs have changed. Invalid configs are ignored.
        """
        if (own, cluster) == self._stored:
            return False
        self._stored = (dict(own), dict(cluster))
        self.levels = ConfigLevels(
            own=usable_configs(own), cluster=usable_configs(cluster), static=self._static_configs
        )
        current, rates = self.static, dict[str, int]()
        for configs in (self.levels.cluster, self.levels.own):
            for name, value in configs.items():
                if name in DYNAMIC_ONLY_CONFIGS:
                    rates[name] = int(DYNAMIC_ONLY_CONFIGS[name].parse(value))
                elif _can_be_overridden(name):
                    try:
                        current = current.with_overrides({name: value})
                    except InvalidBrokerConfigError as error:
                        logger.error("A dynamic config is ignored: %s", error)
        self.current, self.throttled_rates = current, rates
        return True


def usable_configs(stored: Mapping[str, str]) -> dict[str, str]:
    """Return the stored configs, without those that no broker can use (`fromPersistentProps`).

    A client that sends its changes directly to the controller can store such configs.
    """
    return {name: value for name, value in stored.items() if _is_usable(name, value)}


def _is_usable(name: str, value: str) -> bool:
    key = _key(name)
    if (key is not None and key.update_mode is UpdateMode.READ_ONLY) or _is_of_one_broker(name):
        return False
    try:
        check_values({name: value})
    except InvalidBrokerConfigError:
        return False
    return True


def check_dynamic_configs(
    static: BrokerConfig, configs: Mapping[str, str], *, per_broker: bool
) -> None:
    """Raise ApiError (INVALID_REQUEST) if a broker cannot apply the dynamic configs.

    `per_broker` is False for configs that apply to all brokers. Source:
    `DynamicBrokerConfig.validate`.
    """
    keys = {name: _key(name) for name in configs}
    modes = {name: key.update_mode for name, key in keys.items() if key is not None}
    _refuse(
        (name for name, mode in modes.items() if mode is UpdateMode.READ_ONLY),
        "Cannot update these configs dynamically",
    )
    _refuse(
        (name for name in modes if name.startswith("ssl.")),
        "These security configs can be dynamically updated only per-listener using the listener "
        "prefix",
    )
    try:
        check_values(configs)
        static.with_overrides({name: configs[name] for name in configs if _can_be_overridden(name)})
    except InvalidBrokerConfigError as error:
        raise ApiError(ErrorCode.invalid_request, str(error)) from error
    of_listeners = [name for name in configs if _is_of_one_broker(name)]
    if not per_broker:
        _refuse(
            of_listeners,
            "Cannot update these configs at default cluster level, broker id must be specified",
        )
    _refuse(
        of_listeners,
        "This broker cannot change the configs of listeners while it runs. Change them in its "
        "configuration and restart it",
    )


def check_values(configs: Mapping[str, str]) -> None:
    """Raise InvalidBrokerConfigError if a value is invalid on every broker.

    Unknown configs are not checked. Whether a broker can apply a value also depends on the other
    configs of the broker.
    """
    for name, value in configs.items():
        key = _key(name)
        if key is not None:
            key.parse(value)
    of_topics = {name: value for name, value in configs.items() if name in TOPIC_DEFAULTS}
    if of_topics:
        BrokerConfig().with_overrides(of_topics)


def _key(name: str) -> ConfigKey | None:
    return CONFIG_KEYS.get(name) or DYNAMIC_ONLY_CONFIGS.get(name)


def _is_of_one_broker(name: str) -> bool:
    """Return whether a config cannot apply to all brokers, for example a config of a listener."""
    key = _key(name)
    if key is not None:
        return key.update_mode is UpdateMode.PER_BROKER
    return name.startswith(LISTENER_PREFIX) and not name.endswith(_CLUSTER_WIDE_OF_LISTENERS)


def _can_be_overridden(name: str) -> bool:
    key = CONFIG_KEYS.get(name)
    return key is not None and key.update_mode is UpdateMode.CLUSTER


def _refuse(names: Iterable[str], reason: str) -> None:
    found = list(names)
    if found:
        raise ApiError(ErrorCode.invalid_request, f"{reason}: [{', '.join(found)}]")
