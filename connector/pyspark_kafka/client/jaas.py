"""Converts `sasl.jaas.config` and Java's login handlers to librdkafka's SASL properties.

Invariant: no error contains a part of the string, since it contains the password. What it must not
know: settings other than SASL's.

The syntax (JAAS, as in Kafka's JaasConfig): `CLASS FLAG key=value key="va\\"lue";`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pyspark_kafka.errors import OptionError

_TOKEN: Final = re.compile(
    r"""\s*(?: "(?P<quoted>(?:[^"\\]|\\.)*)" | (?P<mark>[=;]) | (?P<word>[^\s"=;]+) )""",
    re.VERBOSE | re.DOTALL,
)
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_OAUTH_HANDLERS: Final = (
    "OAuthBearerLoginCallbackHandler",
    "OAuthBearerUnsecuredLoginCallbackHandler",
)
_SUBJECT_CLAIM: Final = "unsecuredloginstringclaim_sub"
_OPTION: Final = "kafka.sasl.jaas.config"
_SYNTAX_ADVICE: Final = (
    "Write it like this: org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="..." password="...";'
)


def sasl_properties(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's properties for the Java SASL settings; raises `OptionError`."""
    _check_handler(kafka.get("sasl.login.callback.handler.class"))
    config = kafka.get("sasl.jaas.config")
    if config is None:
        return {}
    module, options = _parse(config)
    mechanism = kafka.get("sasl.mechanism", kafka.get("sasl.mechanisms", "")).upper()
    name = module.rpartition(".")[2]
    if name in {"PlainLoginModule", "ScramLoginModule"}:
        _check_mechanism(name, mechanism)
        return {
            "sasl.username": _required(options, "username"),
            "sasl.password": _required(options, "password"),
        }
    if name == "OAuthBearerLoginModule":
        _check_mechanism(name, mechanism)
        return _oauthbearer(options)
    if name == "Krb5LoginModule":
        raise OptionError(
            f"Option '{_OPTION}' requires Kerberos (GSSAPI), which the confluent-kafka wheels do "
            "not contain.",
            advice="Use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER, or librdkafka's "
            "'kafka.sasl.kerberos.*' properties with a confluent-kafka that is built from source "
            "with libsasl2.",
            option=_OPTION,
        )
    raise OptionError(
        f"Option '{_OPTION}' names a login module that only Java can load.",
        advice="Use PlainLoginModule, ScramLoginModule or OAuthBearerLoginModule.",
        option=_OPTION,
    )


def _check_handler(handler: str | None) -> None:
    if handler is not None and handler.rpartition(".")[2] not in _OAUTH_HANDLERS:
        raise OptionError(
            "Option 'kafka.sasl.login.callback.handler.class' names a class that only Java can "
            "load.",
            advice="For OAUTHBEARER use Kafka's OAuthBearerLoginCallbackHandler or librdkafka's "
            "'kafka.sasl.oauthbearer.*' properties.",
            option="kafka.sasl.login.callback.handler.class",
        )


_MECHANISMS: Final[Mapping[str, tuple[str, ...]]] = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
}


def _check_mechanism(module: str, mechanism: str) -> None:
    if mechanism not in _MECHANISMS[module]:
        raise OptionError(
            f"Option '{_OPTION}' is for {module}, but 'kafka.sasl.mechanism' is "
            f"{mechanism or 'not set'}.",
            advice=f"Set 'kafka.sasl.mechanism' to {' or '.join(_MECHANISMS[module])}.",
            option="kafka.sasl.mechanism",
        )


def _required(options: Mapping[str, str], name: str) -> str:
    if name not in options:
        raise OptionError(
            f"Option '{_OPTION}' has no {name}.", advice=_SYNTAX_ADVICE, option=_OPTION
        )
    return options[name]


def _malformed() -> OptionError:
    return OptionError(f"Option '{_OPTION}' is malformed.", advice=_SYNTAX_ADVICE, option=_OPTION)


def _oauthbearer(options: Mapping[str, str]) -> dict[str, str]:
    if "clientid" in options:
        properties = {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": options["clientid"],
            "sasl.oauthbearer.client.secret": _required(options, "clientsecret"),
        }
        if "scope" in options:
            properties["sasl.oauthbearer.scope"] = options["scope"]
        return properties
    if _SUBJECT_CLAIM in options:
        return {
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": f"principal={options[_SUBJECT_CLAIM]}",
        }
    raise OptionError(
        f"Option '{_OPTION}' has no credentials for OAUTHBEARER.",
        advice="Add clientId and clientSecret, and set "
        "'kafka.sasl.oauthbearer.token.endpoint.url'; or add unsecuredLoginStringClaim_sub for a "
        "broker that accepts unsecured tokens.",
        option=_OPTION,
    )


def _parse(config: str) -> tuple[str, dict[str, str]]:
    """Return the login module of the only entry, and its options with names in lower case."""
    tokens = _tokens(config)
    if len(tokens) < 3 or tokens[-1] != ";" or tokens[1].lower() not in _FLAGS:
        raise _malformed()
    options = {}
    rest = tokens[2:-1]
    while rest:
        if len(rest) < 3 or rest[1] != "=":
            raise _malformed()
        options[rest[0].lower()] = _unquote(rest[2])
        rest = rest[3:]
    return _unquote(tokens[0]), options


_QUOTED: Final = '"'


def _unquote(token: str) -> str:
    return token.removeprefix(_QUOTED)


def _tokens(config: str) -> list[str]:
    """Return words, marks and strings; strings begin with a quote, unlike marks."""
    tokens = []
    position, text = 0, config.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _malformed()
        quoted = match["quoted"]
        if quoted is not None:
            tokens.append(_QUOTED + re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
        else:
            tokens.append(match["mark"] or match["word"])
        position = match.end()
    return tokens
