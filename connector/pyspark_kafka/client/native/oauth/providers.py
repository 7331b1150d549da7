"""Finds the token provider that `sasl.oauthbearer.token.provider` names.

A table lists the built-in providers for cloud vendors. Entry points are not used for these
providers, because an archive that is passed to `spark-submit --py-files` contains no package
metadata. The libraries of the vendors are optional extras.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Final

from pyspark_kafka.errors import OptionError
from pyspark_kafka.tokens import Token, TokenProvider

GROUP: Final = "pyspark_kafka.token_providers"


@dataclass(frozen=True, slots=True)
class _Vendor:
    """A built-in provider, its library, the extra that installs the library, and its settings.

    `requires` maps a setting to the settings that it requires. `own_credentials` contains the
    settings that conflict with `service.credential`.
    """

    target: str
    library: str
    extra: str
    settings: frozenset[str]
    requires: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own_credentials: tuple[str, ...] = ()


_HERE: Final = "pyspark_kafka.client.native.oauth"
VENDORS: Final[Mapping[str, _Vendor]] = {
    "aws_msk_iam": _Vendor(
        f"{_HERE}.aws_msk_iam:token",
        "aws_msk_iam_sasl_signer",
        "msk-iam",
        frozenset({"region", "profile", "role.arn", "role.session.name", "service.credential"}),
        requires={"role.session.name": ("role.arn",)},
        own_credentials=("profile", "role.arn"),
    ),
    "azure": _Vendor(
        f"{_HERE}.azure:token",
        "azure.identity",
        "azure",
        frozenset({"scope", "tenant.id", "client.id", "client.secret", "service.credential"}),
        requires={
            "tenant.id": ("client.id", "client.secret"),
            "client.secret": ("tenant.id", "client.id"),
        },
        own_credentials=("tenant.id", "client.id", "client.secret"),
    ),
    "google": _Vendor(
        f"{_HERE}.google:token",
        "google.auth",
        "google",
        frozenset({"principal", "service.credential"}),
    ),
}
_SERVERS: Final = "bootstrap.servers"
_CREDENTIAL: Final = "service.credential"


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """A call to a provider. Equal calls share their tokens.

    `extensions` are added to the extensions of the provider's token, and take precedence over them.
    """

    name: str
    settings: tuple[tuple[str, str], ...] = field(repr=False)
    provider: TokenProvider = field(compare=False)
    extensions: tuple[tuple[str, str], ...] = ()

    def __call__(self) -> Token:
        token = self.provider(dict(self.settings))
        if not self.extensions:
            return token
        return replace(token, extensions={**token.extensions, **dict(self.extensions)})


def request_of(
    name: str,
    settings: Mapping[str, str],
    option: str,
    extensions: tuple[tuple[str, str], ...] = (),
) -> Callable[[], Token]:
    """Return a function that requests a token from the named provider. Raises `OptionError`."""
    provider = _provider(name, settings, option)
    return ProviderRequest(name, tuple(sorted(settings.items())), provider, extensions)


def _provider(name: str, settings: Mapping[str, str], option: str) -> TokenProvider:
    vendor = VENDORS.get(name)
    if vendor is not None:
        _check_vendor(vendor, settings, option)
        return _load(vendor.target, option)
    if ":" in name:
        return _load(name, option)
    found = next(iter(entry_points(group=GROUP, name=name)), None)
    if found is None:
        known = sorted({*VENDORS, *(point.name for point in entry_points(group=GROUP))})
        raise OptionError(
            f"Option '{option}' specifies the token provider {name!r}, which does not exist.",
            advice=f"Use {', '.join(known)}, or a callable in the form module:callable.",
            option=option,
        )
    return _load(found.value, option)


def _check_vendor(vendor: _Vendor, settings: Mapping[str, str], option: str) -> None:
    for name in settings:
        if name != _SERVERS and name not in vendor.settings:
            raise OptionError(
                f"Option '{option}.{name}' is not a setting of the token provider.",
                advice=f"The settings of the provider are {', '.join(sorted(vendor.settings))}.",
                option=f"{option}.{name}",
            )
    for name, required in vendor.requires.items():
        missing = next((other for other in required if other not in settings), None)
        if name in settings and missing is not None:
            raise OptionError(
                f"Option '{option}.{name}' is set, but '{option}.{missing}' is not.",
                advice=f"Set '{option}.{missing}', or remove '{option}.{name}'.",
                option=f"{option}.{missing}",
            )
    if _CREDENTIAL in settings:
        other = next((name for name in vendor.own_credentials if name in settings), None)
        if other is not None:
            raise OptionError(
                f"Option '{option}.{other}' has no effect if '{option}.{_CREDENTIAL}' is set.",
                advice="Remove one of the two options.",
                option=f"{option}.{other}",
            )
    if not _is_installed(vendor.library):
        raise OptionError(
            f"Option '{option}' requires the package '{vendor.library}', which is not installed.",
            advice=f"Install it on the driver and on all executors: pip install "
            f"'pyspark-kafka[{vendor.extra}]'.",
            option=option,
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent of the module is missing
        return False


def _load(target: str, option: str) -> TokenProvider:
    module, _, path = target.partition(":")
    try:
        found: object = import_module(module.strip())
        for part in path.strip().split("."):
            found = getattr(found, part)
    except Exception as error:
        raise OptionError(
            f"Option '{option}' specifies the token provider '{target}', which cannot be imported "
            f"({type(error).__name__}).",
            advice="Use the form module:callable, and install the module on the driver and on all "
            "executors.",
            option=option,
        ) from None
    if not callable(found):
        raise OptionError(
            f"Option '{option}' specifies '{target}', which is not callable.",
            advice="Use a function with the signature of pyspark_kafka.tokens.TokenProvider.",
            option=option,
        )
    return found
