"""Typed access to the options of one query.

`RawOptions` checks that the option names are correct and that the options apply to the query. It
does not check combinations of options, except that it enforces `Option.requires`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar

from pyspark_kafka.errors import OptionError, sentence
from pyspark_kafka.options.config_providers import resolve
from pyspark_kafka.options.names import check_names
from pyspark_kafka.options.offsets_json import OffsetFormatError
from pyspark_kafka.options.table import BY_LOWER_NAME, OPTIONS, REJECTED_KAFKA, Mode

log = logging.getLogger(__name__)

T = TypeVar("T")

_KAFKA: str = "kafka."


class RawOptions:
    """The options of one query. Names are case-insensitive; values are parsed on access.

    The driver resolves the config provider references in all values. Only the mapping `kafka` can
    contain unresolved references, because only this mapping is passed to tasks.

    `modes` contains the mode of the query, or both read modes if the mode is not known yet. The
    constructor raises `OptionError` for unknown names, for options that do not apply to the query,
    and for references that cannot be resolved.
    """

    def __init__(self, options: Mapping[str, str], modes: frozenset[Mode]) -> None:
        self.modes = modes
        self._given = {name.lower(): value for name, value in options.items()}
        self._resolved = resolve(self._given)
        self._texts = self._resolved.values
        check_names(options)
        for name in options:
            self._check_modes(name.lower())
        for name in options:
            self._check_requirement(name.lower())

    def __len__(self) -> int:
        return len(self._given)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._texts

    @property
    def kafka(self) -> dict[str, str]:
        """The `kafka.*` settings. Their names are in lower case and do not contain the prefix.

        Config provider references are resolved only in settings that `table` defines as options.
        """
        return {
            name.removeprefix(_KAFKA): self._texts[name] if name in BY_LOWER_NAME else text
            for name, text in self._given.items()
            if name.startswith(_KAFKA)
        }

    def kafka_setting(self, name: str, default: str) -> str:
        """Return the resolved value of a `kafka.*` setting. `name` does not contain the prefix."""
        return self._texts.get(_KAFKA + name, default)

    def masked_in_errors(self) -> AbstractContextManager[None]:
        """Return a context manager that replaces resolved values in errors with references."""
        return self._resolved.masked_in_errors()

    def text(self, name: str) -> str:
        value = self._value(name)
        assert isinstance(value, str), name
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self._value(name) is None else self.text(name)

    def boolean(self, name: str) -> bool:
        value = self._value(name)
        assert isinstance(value, bool), name
        return value

    def integer(self, name: str) -> int:
        value = self._value(name)
        assert isinstance(value, int), name
        return value

    def optional_integer(self, name: str) -> int | None:
        return None if self._value(name) is None else self.integer(name)

    def json(self, name: str, parse: Callable[[str], T]) -> T:
        """Return the value of a JSON option. `parse` is a function from `offsets_json`."""
        text = self.text(name)
        try:
            return parse(text)
        except OffsetFormatError as error:
            raise OptionError(
                f"Option '{name}' has the invalid value '{text}'. {sentence(error.problem)}.",
                advice=f"Set it to JSON in this format: {error.example}.",
                option=name,
                topic=error.topic,
                partition=error.partition,
            ) from None

    def parse_all(self) -> None:
        """Parse all values. Raises `OptionError` for an invalid value."""
        for option in OPTIONS:
            self._value(option.name)

    def _value(self, name: str) -> bool | int | str | None:
        option = BY_LOWER_NAME[name.lower()]
        text = self._texts.get(name.lower())
        if text is None or self.modes <= option.ignored_modes:
            text = option.default_in(self.modes)
        return None if text is None else option.parse(text)

    def _check_modes(self, lowered: str) -> None:
        setting = lowered.removeprefix(_KAFKA)
        if setting != lowered and setting in REJECTED_KAFKA:
            raise OptionError(
                f"Option '{lowered}' is not supported.",
                advice=REJECTED_KAFKA[setting],
                option=lowered,
            )
        option = BY_LOWER_NAME.get(lowered)
        if option is None:
            return
        query = " or ".join(sorted(mode.value for mode in self.modes))
        if self.modes <= option.ignored_modes:
            log.warning("Option '%s' has no effect in %s.", option.name, query)
        elif not self.modes & option.modes:
            raise OptionError(
                f"Option '{option.name}' does not apply to {query}.",
                advice=option.advice,
                option=option.name,
            )

    def _check_requirement(self, lowered: str) -> None:
        option = BY_LOWER_NAME.get(lowered)
        if option is None or option.requires is None or option.requires in self:
            return
        if self.modes & BY_LOWER_NAME[option.requires.lower()].modes:
            raise OptionError(
                f"Option '{option.name}' requires the option '{option.requires}'.",
                advice=f"Set '{option.requires}', or remove '{option.name}'.",
                option=option.name,
            )
