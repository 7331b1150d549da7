"""`sasl.jaas.config` and Java's login handlers as librdkafka's SASL properties.

Purpose: what a Java user has in one string, split into librdkafka's properties. Invariant: no part
of the string is ever in a message, since it holds the password. What it must not know: other
settings than SASL's.

The form (JAAS, as Kafka's JaasConfig reads it): `CLASS FLAG key=value key="va\\"lue";`
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
_FORM: Final = (
    "it must read like org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="..." password="...";'
)


def sasl_properties(given: Mapping[str, str]) -> dict[str, str]:
    """librdkafka's properties for the Java SASL settings among these; raises `OptionError`."""
    _check_handler(given.get("sasl.login.callback.handler.class"))
    config = given.get("sasl.jaas.config")
    if config is None:
        return {}
    module, options = _parse(config)
    mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms", "")).upper()
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
            "option 'kafka.sasl.jaas.config' asks for Kerberos (GSSAPI), which is not in the "
            "confluent-kafka wheels: use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER, or "
            "librdkafka's 'kafka.sasl.kerberos.*' properties with a confluent-kafka that is built "
            "from source with libsasl2"
        )
    raise OptionError(
        "option 'kafka.sasl.jaas.config' names a login module that only Java could load: use "
        "PlainLoginModule, ScramLoginModule or OAuthBearerLoginModule"
    )


def _check_handler(handler: str | None) -> None:
    if handler is not None and handler.rpartition(".")[2] not in _OAUTH_HANDLERS:
        raise OptionError(
            "option 'kafka.sasl.login.callback.handler.class' names a class that only Java could "
            "load: for OAUTHBEARER use Kafka's OAuthBearerLoginCallbackHandler or librdkafka's "
            "'kafka.sasl.oauthbearer.*' properties"
        )


_MECHANISMS: Final[Mapping[str, tuple[str, ...]]] = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
}


def _check_mechanism(module: str, mechanism: str) -> None:
    if mechanism not in _MECHANISMS[module]:
        raise OptionError(
            f"option 'kafka.sasl.jaas.config' is for {module}, but 'kafka.sasl.mechanism' is "
            f"{mechanism or 'not set'}: set it to {' or '.join(_MECHANISMS[module])}"
        )


def _required(options: Mapping[str, str], name: str) -> str:
    if name not in options:
        raise OptionError(f"option 'kafka.sasl.jaas.config' has no {name}: {_FORM}")
    return options[name]


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
        "option 'kafka.sasl.jaas.config' for OAUTHBEARER needs clientId and clientSecret (and "
        "'kafka.sasl.oauthbearer.token.endpoint.url' beside it), or "
        "unsecuredLoginStringClaim_sub for a broker that takes unsecured tokens"
    )


def _parse(config: str) -> tuple[str, dict[str, str]]:
    """The login module and its options, their names in lower case; exactly one entry."""
    tokens = _tokens(config)
    if len(tokens) < 3 or tokens[-1] != ";" or tokens[1].lower() not in _FLAGS:
        raise OptionError(f"option 'kafka.sasl.jaas.config' is malformed: {_FORM}")
    options = {}
    rest = tokens[2:-1]
    while rest:
        if len(rest) < 3 or rest[1] != "=":
            raise OptionError(f"option 'kafka.sasl.jaas.config' is malformed: {_FORM}")
        options[rest[0].lower()] = _unmark(rest[2])
        rest = rest[3:]
    return _unmark(tokens[0]), options


_QUOTED: Final = '"'


def _unmark(token: str) -> str:
    return token.removeprefix(_QUOTED)


def _tokens(config: str) -> list[str]:
    """Words, marks and quoted strings; the last begin with a quote, so that they are no marks."""
    tokens = []
    position, text = 0, config.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise OptionError(f"option 'kafka.sasl.jaas.config' is malformed: {_FORM}")
        quoted = match["quoted"]
        if quoted is not None:
            tokens.append(_QUOTED + re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
        else:
            tokens.append(match["mark"] or match["word"])
        position = match.end()
    return tokens
