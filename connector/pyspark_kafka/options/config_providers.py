"""Resolves config provider references in option values, in Kafka's notation (KIP-297).

| reference | value | Kafka's class |
| --- | --- | --- |
| `${env:NAME}` | an environment variable | `EnvVarConfigProvider` |
| `${file:PATH:KEY}` | the value of a key in a Java properties file (UTF-8) | `FileConfigProvider` |
| `${dir:PATH:FILE}` | the content of a file in a directory | `DirectoryConfigProvider` |

As in `ConfigTransformer`, a value can contain several references, and there is no escape sequence.
The result is not searched for further references. A reference to another provider is not changed.
Unlike in Kafka, a reference that cannot be resolved is an error. Invariant: no error contains a
resolved value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark_kafka.errors import OptionError, PysparkKafkaError
from pyspark_kafka.options.java_properties import JavaPropertiesError, parse_java_properties

_REFERENCE: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")


@dataclass(frozen=True, slots=True)
class Resolved:
    """Option values with resolved references. `references` maps each value to its reference."""

    values: Mapping[str, str] = field(repr=False)
    references: Mapping[str, str] = field(repr=False)

    @contextmanager
    def masked_in_errors(self) -> Iterator[None]:
        """Return a context manager that replaces resolved values in errors with references.

        Within the `with` block, `masked` replaces resolved values in log messages in the same way.
        """
        token = _masks.set((*_masks.get(), _Mask(self.references)))
        try:
            yield
        except PysparkKafkaError as error:
            _mask(error)
            raise
        finally:
            _masks.reset(token)


def resolve(options: Mapping[str, str], *, prefix: str = "") -> Resolved:
    """Resolve the config provider references in all values. Raises `OptionError`.

    The providers read files and environment variables of this machine. `prefix` is prepended to the
    option names in errors.
    """
    values, references = {}, {}
    for name, text in options.items():
        option = prefix + name

        def value_of(match: re.Match[str], option: str = option) -> str:
            provider, path, key = match[1], match[2] or "", match[3]
            if provider not in _PROVIDERS:
                return match[0]
            try:
                value = _PROVIDERS[provider](path, key)
            except _ProviderError as error:
                raise OptionError(
                    f"Option '{option}' refers to {match[0]}, but {error.reason}.",
                    advice=error.advice,
                    option=option,
                ) from None
            references[value] = match[0]
            return value

        # Spark passes None for an option that is set to None.
        values[name] = _REFERENCE.sub(value_of, text) if text and "${" in text else text
    references.pop("", None)
    return Resolved(values, references)


class _Mask:
    """Replaces resolved values in text with their references.

    A value is replaced regardless of its case, with or without its surrounding whitespace, and also
    in the form that `repr` returns. A short value is replaced only if it is a whole word, because
    longer words may contain the value by chance.
    """

    def __init__(self, references: Mapping[str, str]) -> None:
        self._references = {
            form.lower(): references[value]
            for value in sorted(references, key=len)
            for form in (value, value.strip(), repr(value)[1:-1], repr(value.strip())[1:-1])
            if form
        }
        forms = sorted(self._references, key=len, reverse=True)
        patterns = [
            re.escape(form) if len(form) >= _LONG else rf"(?<!\w){re.escape(form)}(?!\w)"
            for form in forms
        ]
        # Option names are not masked, even if they contain a value such as the user name `kafka`.
        self._pattern = re.compile("|".join([_OPTION, *patterns]), re.IGNORECASE)

    def __call__(self, text: str) -> str:
        return self._pattern.sub(self._replacement, text) if self._references else text

    def _replacement(self, match: re.Match[str]) -> str:
        found = match[0].lower()
        if found.startswith("'kafka."):
            reference = self._references.get(found[1:-1])
            return match[0] if reference is None else f"'{reference}'"
        return self._references[found]


_LONG: Final = 6
_OPTION: Final = r"'kafka\.[\w.*-]+'"
_masks: ContextVar[tuple[_Mask, ...]] = ContextVar("masks", default=())


def masked(text: str) -> str:
    """Replace resolved values in `text` with their references (see `masked_in_errors`)."""
    for mask in _masks.get():
        text = mask(text)
    return text


def _mask(error: PysparkKafkaError) -> None:
    error.what, error.advice = masked(error.what), masked(error.advice)
    error.args = (error.what,)
    for name in ("topic", "group_id", "transactional_id"):
        value = getattr(error, name)
        if value is not None:
            setattr(error, name, masked(value))


# --- the providers ---

_ON_EACH_MACHINE: Final = "It must exist on the driver and on all executors."


class _ProviderError(Exception):
    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice


def _from_environment(path: str, key: str) -> str:
    if path:
        raise _ProviderError("the provider 'env' does not accept a path", "Write ${env:NAME}.")
    if key not in os.environ:
        raise _ProviderError(
            f"the environment variable {key!r} is not set",
            f"Set the environment variable. {_ON_EACH_MACHINE}",
        )
    return os.environ[key]


def _from_file(path: str, key: str) -> str:
    if not path:
        raise _ProviderError("the provider 'file' requires a path", "Write ${file:PATH:KEY}.")
    try:
        properties = parse_java_properties(_read(path))
    except JavaPropertiesError as error:
        raise _ProviderError(f"{error} in {path!r}", "Correct the Java properties file.") from None
    if key not in properties:
        raise _ProviderError(
            f"the properties file {path!r} does not contain the key {key!r}",
            "Add the key to the file on the driver and on all executors, or correct the key.",
        )
    return properties[key]


def _from_directory(path: str, key: str) -> str:
    if not path or not key or Path(key).name != key:
        raise _ProviderError(
            "the provider 'dir' requires the path of a directory and a file name",
            "Write ${dir:PATH:FILE}.",
        )
    return _read(str(Path(path, key)))


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode()
    except UnicodeDecodeError:
        raise _ProviderError(
            f"the file {path!r} is not encoded in UTF-8", "Save the file as UTF-8."
        ) from None
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise _ProviderError(
            f"the file {path!r} cannot be read: {reason}",
            f"Correct the path. {_ON_EACH_MACHINE}",
        ) from None


_PROVIDERS: Final[Mapping[str, Callable[[str, str], str]]] = {
    "env": _from_environment,
    "file": _from_file,
    "dir": _from_directory,
}
