"""The effective configs of a topic, their sources and their synonyms.

CreateTopics and DescribeConfigs use this module. The synonyms of a config are sorted by precedence.
The value of the first synonym is the effective value. Source: `kafka.server.ConfigHelper`, KIP-226.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from broker_ref.config import BrokerConfig
from broker_ref.topic_configs import TOPIC_CONFIG_KEYS, ConfigType, TopicConfigKey


class ConfigSource(IntEnum):
    """The source of a config value, with its number in DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """A value of a config at one level of precedence."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfig:
    """A config with its value, source and synonyms."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    doc: str
    read_only: bool
    synonyms: tuple[Synonym, ...]
    is_sensitive: bool = False


def describe_topic_configs(
    config: BrokerConfig, own: Mapping[str, str]
) -> tuple[DescribedConfig, ...]:
    """Return all configs of a topic. `own` contains the configs that are set on the topic."""
    defaults = config.topic_config_defaults()
    return tuple(
        _describe(key, own.get(key.name), defaults.get(key.name))
        for key in TOPIC_CONFIG_KEYS.values()
    )


def _describe(key: TopicConfigKey, own: str | None, default: str | None) -> DescribedConfig:
    synonyms = []
    if own is not None:
        synonyms.append(Synonym(name=key.name, value=own, source=ConfigSource.DYNAMIC_TOPIC_CONFIG))
    if key.server_config is not None:
        if default is not None:
            synonyms.append(
                Synonym(
                    name=key.server_config,
                    value=default,
                    source=ConfigSource.STATIC_BROKER_CONFIG,
                )
            )
        synonyms.append(
            Synonym(name=key.server_config, value=key.default, source=ConfigSource.DEFAULT_CONFIG)
        )
    value: str | None = key.default
    source = ConfigSource.DEFAULT_CONFIG
    if synonyms:
        value, source = synonyms[0].value, synonyms[0].source
    return DescribedConfig(
        name=key.name,
        value=value,
        source=source,
        type=key.type,
        doc=key.doc,
        read_only=False,
        synonyms=tuple(synonyms),
    )
