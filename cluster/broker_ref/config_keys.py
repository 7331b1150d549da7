"""The definition of a broker config (Kafka's `ConfigKey`).

Invariant: `parse` returns only valid values. Source: `org.apache.kafka.common.config.ConfigDef`.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from broker_ref.config_numbers import parse_double, parse_integer
from broker_ref.frozen import dataclass
from broker_ref.topic_configs import ConfigType

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

_TEXT_TYPES: Final = (ConfigType.STRING, ConfigType.LIST, ConfigType.CLASS, ConfigType.PASSWORD)


class UpdateMode(Enum):
    """The ways to change the value of a broker config (Kafka's `DynamicBrokerConfig`)."""

    READ_ONLY = auto()
    """Only at startup."""
    PER_BROKER = auto()
    """For one broker, but not for the whole cluster."""
    CLUSTER = auto()
    """For one broker or for the whole cluster."""


class InvalidBrokerConfigError(ValueError):
    """The broker config `name` is unknown or has an invalid value."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """The definition of a broker config.

    `minimum` and `maximum` are inclusive. If `choices` is not empty, it contains the valid values
    of a config of type STRING. If `ignores_case` is True, the value is converted to lowercase. If
    `empty_is_null` is True, the empty string represents null in Kafka.
    """

    name: str
    type: ConfigType
    default: int | bool | str
    doc: str
    minimum: int = 0
    maximum: int = INT32_MAX
    choices: tuple[str, ...] = ()
    ignores_case: bool = False
    empty_is_null: bool = True
    update_mode: UpdateMode = UpdateMode.READ_ONLY

    @property
    def attribute(self) -> str:
        """Return the name of the `BrokerConfig` field that contains the value."""
        return self.name.replace(".", "_")

    @property
    def is_sensitive(self) -> bool:
        """Return whether the value is a secret, which must not be described or logged."""
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> int | bool | str:
        """Parse the text of a value. Raises: InvalidBrokerConfigError."""
        text = text.strip()
        if self.type in _TEXT_TYPES:
            text = text.lower() if self.ignores_case else text
            self.check(text)
            return text
        if self.type is ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._invalid(text, "must be true or false")
            return text.lower() == "true"
        if self.type is ConfigType.DOUBLE:
            try:
                parse_double(text)
            except ValueError:
                raise self._invalid(text, "must be a number") from None
            return text
        try:
            value = parse_integer(text)
        except ValueError:
            raise self._invalid(text, "must be an integer") from None
        self.check(value)
        return value

    def check(self, value: int | str) -> None:
        """Raise InvalidBrokerConfigError if the value is not allowed."""
        if isinstance(value, str):
            if self.choices and value not in self.choices:
                known = " or ".join(choice or "empty" for choice in self.choices)
                raise self._invalid(value, f"must be {known}")
        elif not self.minimum <= value <= self.maximum:
            raise self._invalid(value, f"must be between {self.minimum} and {self.maximum}")

    def text(self, value: int | bool | str) -> str | None:
        """Return the value as Kafka prints it, or None for null or a secret."""
        if self.is_sensitive:
            return None
        if isinstance(value, str):
            return None if self.empty_is_null and not value else self.type.printed(value)
        return str(value).lower() if self.type is ConfigType.BOOLEAN else str(value)

    def _invalid(self, value: object, reason: str) -> InvalidBrokerConfigError:
        shown = "(hidden)" if self.is_sensitive else repr(value)
        return InvalidBrokerConfigError(
            self.name, f"Invalid value {shown} for config {self.name}: {reason}."
        )
