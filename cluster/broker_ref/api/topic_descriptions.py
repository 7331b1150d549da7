"""The effective configs of a topic, their sources and their synonyms.

CreateTopics and DescribeConfigs use this module. The synonyms of a config are sorted by precedence.
The value of the first synonym is the effective value. Source: `kafka.server.ConfigHelper`, KIP-226.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from broker_ref.dynamic_configs import ConfigSource, DynamicBrokerConfig, Synonym
from broker_ref.frozen import dataclass
from broker_ref.server_defaults import TOPIC_CONFIG_SYNONYMS
from broker_ref.topic_configs import TOPIC_CONFIG_KEYS, TopicConfigKey


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfig:
    """A config with its value, source and synonyms. Type 0 means that the type is unknown."""

    name: str
    value: str | None
    source: ConfigSource
    type: int
    doc: str
    read_only: bool
    synonyms: tuple[Synonym, ...]
    is_sensitive: bool = False


def describe_topic_configs(
    configs: DynamicBrokerConfig, own: Mapping[str, str]
) -> tuple[DescribedConfig, ...]:
    """Return all configs of a topic. `own` contains the configs that are set on the topic."""
    defaults = configs.current.topic_config_defaults()
    return tuple(
        _describe(key, own.get(key.name), defaults.get(key.name, key.default), configs)
        for key in TOPIC_CONFIG_KEYS.values()
    )


def printed_topic_configs(
    configs: DynamicBrokerConfig, own: Mapping[str, str]
) -> tuple[DescribedConfig, ...]:
    """Return all configs of a topic. Each value is parsed and formatted as in Kafka.

    The values of synonyms from broker configs are returned unchanged.
    """
    return tuple(
        replace(
            config,
            value=_printed(config, config.value),
            synonyms=tuple(
                replace(synonym, value=_printed(config, synonym.value))
                if synonym.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
                else synonym
                for synonym in config.synonyms
            ),
        )
        for config in describe_topic_configs(configs, own)
    )


def _printed(config: DescribedConfig, value: str | None) -> str | None:
    return None if value is None else TOPIC_CONFIG_KEYS[config.name].type.printed(value)


def _describe(
    key: TopicConfigKey, own: str | None, default: str, configs: DynamicBrokerConfig
) -> DescribedConfig:
    names = TOPIC_CONFIG_SYNONYMS.get(key.name)
    synonyms = list(configs.levels.synonyms(names[0], names)) if names is not None else []
    if own is not None:
        topic_level = ConfigSource.DYNAMIC_TOPIC_CONFIG
        synonyms.insert(0, Synonym(name=key.name, value=own, source=topic_level))
    return DescribedConfig(
        name=key.name,
        value=default if own is None else own,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        type=key.type,
        doc=key.doc,
        read_only=False,
        synonyms=tuple(synonyms),
    )
