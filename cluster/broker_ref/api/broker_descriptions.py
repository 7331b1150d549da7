"""The effective configs of a broker, their sources and their synonyms.

A DescribeConfigs response contains all of Kafka's configs, and all unknown configs that are set.
The broker hides the values of unknown configs. Configs that are internal in Kafka are described
only if they are set. Source: `kafka.server.ConfigHelper`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from broker_ref.api.topic_descriptions import DescribedConfig
from broker_ref.broker_configs import CONFIG_KEYS
from broker_ref.config_keys import ConfigKey, InvalidBrokerConfigError, UpdateMode
from broker_ref.dynamic_configs import (
    DYNAMIC_ONLY_CONFIGS,
    ConfigLevels,
    ConfigSource,
    DynamicBrokerConfig,
)
from broker_ref.security.configs import base_name
from broker_ref.server_defaults import TOPIC_CONFIG_SYNONYMS

UNKNOWN_TYPE: Final = 0
INTERNAL_CONFIGS: Final = frozenset(
    {
        "allow.everyone.if.no.acl.found",
        "producer.id.expiration.check.interval.ms",
        "super.users",
        "unclean.leader.election.interval.ms",
        "unstable.api.versions.enable",
    }
)

_SYNONYMS: Final = MappingProxyType(
    {name: names for names in TOPIC_CONFIG_SYNONYMS.values() for name in names}
)
"""The synonyms of each broker config that sets the default of a topic config."""


def describe_broker_configs(
    configs: DynamicBrokerConfig, identity: Mapping[str, str]
) -> list[DescribedConfig]:
    """Return all configs of a broker. `identity` contains additional static configs."""
    levels = replace(configs.levels, static={**configs.levels.static, **identity})
    names = dict.fromkeys(
        [*(name for name in CONFIG_KEYS if name not in INTERNAL_CONFIGS), *levels.names()]
    )
    return [_describe(name, levels) for name in names]


def describe_cluster_configs(configs: DynamicBrokerConfig) -> list[DescribedConfig]:
    """Return the dynamic cluster-wide default configs with their configured values."""
    levels = ConfigLevels(own={}, cluster=configs.levels.cluster, static={})
    described = (_describe(name, levels) for name in levels.cluster)
    return [
        replace(config, value=config.synonyms[0].value, synonyms=config.synonyms[:1])
        for config in described
    ]


def _describe(name: str, levels: ConfigLevels) -> DescribedConfig:
    key = CONFIG_KEYS.get(name) or DYNAMIC_ONLY_CONFIGS.get(name)
    synonymous: tuple[str, ...] = (name,)
    read_only = key is None or key.update_mode is UpdateMode.READ_ONLY
    base = None if key is not None else base_name(name)
    if base is not None:
        key, synonymous = CONFIG_KEYS[base], (name, base)
    synonyms = levels.synonyms(name, _SYNONYMS.get(name, synonymous))
    value = None if key is None or not synonyms else _printed(key, synonyms[0].value or "")
    is_sensitive = key is None or key.is_sensitive
    if is_sensitive:
        synonyms = tuple(replace(synonym, value=None) for synonym in synonyms)
    return DescribedConfig(
        name=name,
        value=value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        type=UNKNOWN_TYPE if key is None else key.type,
        doc="" if key is None else key.doc,
        read_only=read_only,
        synonyms=synonyms,
        is_sensitive=is_sensitive,
    )


def _printed(key: ConfigKey, text: str) -> str | None:
    """Return the value of a config as Kafka prints it.

    The broker ignores invalid values. This function returns an invalid value unchanged, or None if
    the config is sensitive.
    """
    try:
        return key.text(key.parse(text))
    except InvalidBrokerConfigError:
        return None if key.is_sensitive else text
