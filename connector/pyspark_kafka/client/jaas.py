"""Converts `sasl.jaas.config` and Java login handlers to librdkafka's SASL properties.

Invariant: no error contains any part of `sasl.jaas.config`, because this setting contains the
password. This module handles only SASL settings.

The syntax is that of Kafka's `JaasConfig`: `CLASS FLAG key=value key="va\\"lue" key='value';`, with
the escapes and comments of Java's `StreamTokenizer`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_kafka.client.tls import tls_properties
from pyspark_kafka.errors import OptionError

_TOKEN: Final = re.compile(
    r"""(?P<space> \s+ | //[^\r\n]* | /\*.*?\*/ )
    | (?P<quote>["'])(?P<quoted>(?:(?!(?P=quote))[^\\]|\\.)*)(?P=quote)
    | (?P<mark>[=;])
    | (?P<word>[^\s"'=;]+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_CONTROL: Final[Mapping[str, str]] = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}
TOKEN_PROVIDER: Final = "sasl.oauthbearer.token.provider"  # noqa: S105, a name
"""The option that names a token provider, and the prefix of its settings. Not a Kafka setting."""
AWS_MSK_IAM: Final = "AWS_MSK_IAM"
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_LOGIN_HANDLERS: Final[Mapping[str, str | None]] = {
    "GcpLoginCallbackHandler": "google",
    "IAMOAuthBearerLoginCallbackHandler": "aws_msk_iam",
    "OAuthBearerLoginCallbackHandler": None,
    "OAuthBearerUnsecuredLoginCallbackHandler": None,
}
"""Java's login callback handlers. A vendor's handler is mapped to the provider that replaces it."""
_AWS_SETTINGS: Final[Mapping[str, str]] = {
    "awsprofilename": "profile",
    "awsrolearn": "role.arn",
    "awsrolesessionname": "role.session.name",
}
_AWS_WITHOUT_EFFECT: Final = frozenset({"awsdebugcreds", "awsmaxretries", "awsmaxbackofftimems"})
_SUBJECT_CLAIM: Final = "unsecuredloginstringclaim_sub"
_LIFETIME: Final = "unsecuredloginlifetimeseconds"
_SCOPE_CLAIM: Final = "unsecuredloginlistclaim_scope"
_EXTENSION: Final = "extension_"
_UNSECURED_EXTENSION: Final = "unsecuredloginextension_"
_TRUST_STORE: Final[tuple[str, ...]] = ("ssl.truststore.location", "ssl.truststore.type")
_OPTION: Final = "kafka.sasl.jaas.config"
_SYNTAX_ADVICE: Final = (
    "Use this format: org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="..." password="...";'
)


def sasl_properties(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the librdkafka properties for the Java SASL settings. Raises `OptionError`."""
    provider = _provider_of_handler(kafka.get("sasl.login.callback.handler.class"))
    mechanism = kafka.get("sasl.mechanism", kafka.get("sasl.mechanisms", "")).strip().upper()
    _check_client_handler(kafka.get("sasl.client.callback.handler.class"), mechanism)
    config = kafka.get("sasl.jaas.config")
    if config is None:
        provider = "aws_msk_iam" if mechanism == AWS_MSK_IAM else provider
        return {} if provider is None else {TOKEN_PROVIDER: provider}
    module, options = _parse(config)
    name = module.rpartition(".")[2]
    if name == "IAMLoginModule":
        _check_mechanism(name, mechanism)
        return _aws(options)
    if name in {"PlainLoginModule", "ScramLoginModule"}:
        _check_mechanism(name, mechanism)
        if name == "ScramLoginModule":
            _check_no_delegation_token(options)
        return {
            "sasl.username": _required(options, "username"),
            "sasl.password": _required(options, "password"),
        }
    if name == "OAuthBearerLoginModule":
        _check_mechanism(name, mechanism)
        return _of_oauthbearer_module(options, provider, has_provider=TOKEN_PROVIDER in kafka)
    if name == "Krb5LoginModule":
        raise OptionError(
            f"Option '{_OPTION}' requires Kerberos (GSSAPI), which the confluent-kafka wheels do "
            "not support.",
            advice="Use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER. To use Kerberos, build "
            "confluent-kafka from source with libsasl2 and set librdkafka's "
            "'kafka.sasl.kerberos.*' properties.",
            option=_OPTION,
        )
    raise OptionError(
        f"Option '{_OPTION}' contains a login module that is not supported.",
        advice="Use PlainLoginModule, ScramLoginModule, OAuthBearerLoginModule or AWS's "
        "IAMLoginModule.",
        option=_OPTION,
    )


def _provider_of_handler(handler: str | None) -> str | None:
    """Return the token provider that replaces a login callback handler, or None."""
    if handler is None:
        return None
    name = handler.strip().rpartition(".")[2]
    if name not in _LOGIN_HANDLERS:
        raise OptionError(
            "Option 'kafka.sasl.login.callback.handler.class' specifies an unsupported Java class.",
            advice="Remove the option. For OAUTHBEARER, you can also set it to Kafka's "
            "OAuthBearerLoginCallbackHandler, use librdkafka's 'kafka.sasl.oauthbearer.*' "
            f"properties, or set 'kafka.{TOKEN_PROVIDER}' to a provider written in Python.",
            option="kafka.sasl.login.callback.handler.class",
        )
    return _LOGIN_HANDLERS[name]


def _check_client_handler(handler: str | None, mechanism: str) -> None:
    if handler is None:
        return
    if handler.strip().rpartition(".")[2] != "IAMClientCallbackHandler" or mechanism != AWS_MSK_IAM:
        raise OptionError(
            "Option 'kafka.sasl.client.callback.handler.class' specifies an unsupported Java "
            "class.",
            advice="Remove the option. Only AWS's IAMClientCallbackHandler is supported, with the "
            f"mechanism {AWS_MSK_IAM}.",
            option="kafka.sasl.client.callback.handler.class",
        )


def _aws(options: Mapping[str, str]) -> dict[str, str]:
    """Convert the options of AWS's login module to settings of the token provider."""
    for name in options:
        if name not in _AWS_SETTINGS and name not in _AWS_WITHOUT_EFFECT:
            raise OptionError(
                f"Option '{_OPTION}' contains an unsupported option of AWS's login module.",
                advice="Use only awsProfileName, awsRoleArn and awsRoleSessionName, or set "
                f"'kafka.{TOKEN_PROVIDER}' to a provider written in Python.",
                option=_OPTION,
            )
    given = {_AWS_SETTINGS[n]: value for n, value in options.items() if n in _AWS_SETTINGS}
    settings = {f"{TOKEN_PROVIDER}.{name}": value for name, value in given.items()}
    return {TOKEN_PROVIDER: "aws_msk_iam", **settings}


_MECHANISMS: Final[Mapping[str, tuple[str, ...]]] = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
    "IAMLoginModule": (AWS_MSK_IAM,),
}


def _check_mechanism(module: str, mechanism: str) -> None:
    if mechanism not in _MECHANISMS[module]:
        raise OptionError(
            f"Option '{_OPTION}' uses {module}, but 'kafka.sasl.mechanism' is "
            f"{mechanism or 'not set'}.",
            advice=f"Set 'kafka.sasl.mechanism' to {' or '.join(_MECHANISMS[module])}.",
            option="kafka.sasl.mechanism",
        )


def _check_no_delegation_token(options: Mapping[str, str]) -> None:
    if options.get("tokenauth", "").lower() == "true":
        raise OptionError(
            f"Option '{_OPTION}' contains tokenauth, but delegation tokens are not supported.",
            advice="Remove tokenauth, and set username and password to the credentials of a user.",
            option=_OPTION,
        )


def _required(options: Mapping[str, str], name: str) -> str:
    if name not in options:
        raise OptionError(
            f"Option '{_OPTION}' does not contain {name}.", advice=_SYNTAX_ADVICE, option=_OPTION
        )
    return options[name]


def _malformed() -> OptionError:
    return OptionError(f"Option '{_OPTION}' is malformed.", advice=_SYNTAX_ADVICE, option=_OPTION)


def _of_oauthbearer_module(
    options: Mapping[str, str], provider: str | None, *, has_provider: bool
) -> dict[str, str]:
    """Return the properties for OAuthBearerLoginModule.

    `provider` is the token provider that replaces the login callback handler, if any.
    """
    if provider == "aws_msk_iam":
        return _aws(options)
    if provider is not None:
        return {TOKEN_PROVIDER: provider, **_extensions_only(options)}
    if has_provider:
        return _extensions_only(options)
    return _unsecured(options) if _SUBJECT_CLAIM in options else _oauthbearer(options)


def _oauthbearer(options: Mapping[str, str]) -> dict[str, str]:
    """Return the properties for the options of Kafka's `OAuthBearerLoginCallbackHandler`.

    The credentials can also be set with Kafka's own settings. `java_names` checks that credentials
    are set.
    """
    properties = {}
    rest = dict(options)
    if "clientid" in options or "clientsecret" in options:
        properties = {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": _required(rest, "clientid"),
            "sasl.oauthbearer.client.secret": _required(rest, "clientsecret"),
        }
        del rest["clientid"], rest["clientsecret"]
    if "scope" in rest:
        properties["sasl.oauthbearer.scope"] = rest.pop("scope")
    store = {name: rest.pop(name) for name in _TRUST_STORE if name in rest}
    return {**properties, **_trust_store(store), **_extensions_only(rest)}


def _trust_store(store: Mapping[str, str]) -> dict[str, str]:
    """Return the properties for the CA certificates that are used to verify the token endpoint."""
    try:
        properties = tls_properties(store)
    except OptionError:  # the error names an option that the user did not set
        raise _invalid_value("ssl.truststore.location does not refer to a PEM file") from None
    return {name.replace("ssl.", "https.", 1): value for name, value in properties.items()}


def _extensions_only(options: Mapping[str, str]) -> dict[str, str]:
    """Return the property for the `extension_*` options.

    Raises `OptionError` for any other option.
    """
    pairs = []
    for name, value in options.items():
        if not name.startswith(_EXTENSION):
            raise _unsupported()
        if "," in value:
            raise _invalid_value("an extension contains a comma")
        pairs.append(f"{name.removeprefix(_EXTENSION)}={value}")
    return {"sasl.oauthbearer.extensions": ",".join(pairs)} if pairs else {}


def _unsecured(options: Mapping[str, str]) -> dict[str, str]:
    """Return the properties for the options of `OAuthBearerUnsecuredLoginCallbackHandler`.

    In `sasl.oauthbearer.config`, spaces separate the values, and commas separate the scopes.
    """
    pairs = {}
    for name, value in options.items():
        if name == _SUBJECT_CLAIM:
            pairs["principal"] = value
        elif name == _LIFETIME:
            pairs["lifeSeconds"] = value
        elif name == _SCOPE_CLAIM:
            if "," in value[1:]:
                raise _invalid_value("a scope contains a comma")
            pairs["scope"] = value[1:].replace(value[:1], ",")
        elif name.startswith(_UNSECURED_EXTENSION):
            pairs[_EXTENSION + name.removeprefix(_UNSECURED_EXTENSION)] = value
        else:
            raise _unsupported()
    if any(character.isspace() for value in pairs.values() for character in value):
        raise _invalid_value("the value of an option for unsecured tokens contains a space")
    return {
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": " ".join(f"{name}={value}" for name, value in pairs.items()),
    }


def _unsupported() -> OptionError:
    return OptionError(
        f"Option '{_OPTION}' contains an option of OAuthBearerLoginModule that is not supported.",
        advice="Use only clientId, clientSecret, scope, extension_NAME and ssl.truststore.location "
        "(PEM). With a token provider, use only extension_NAME. If the brokers accept unsecured "
        "tokens, use unsecuredLoginStringClaim_sub, unsecuredLoginListClaim_scope, "
        "unsecuredLoginLifetimeSeconds and unsecuredLoginExtension_NAME.",
        option=_OPTION,
    )


def _invalid_value(problem: str) -> OptionError:
    return OptionError(
        f"Option '{_OPTION}' has an unsupported value: {problem}.",
        advice="Correct the value.",
        option=_OPTION,
    )


def _parse(config: str) -> tuple[str, dict[str, str]]:
    """Return the class of the login module, and its options with lower-case names.

    The case of extension names does not change.
    """
    tokens = _tokens(config)
    if len(tokens) < 3 or not tokens[-1].is_mark(";") or tokens[1].text.lower() not in _FLAGS:
        raise _malformed()
    options = {}
    rest = tokens[2:-1]
    while rest:
        if len(rest) < 3 or not rest[1].is_mark("="):
            raise _malformed()
        options[_option_name(rest[0].text)] = rest[2].text
        rest = rest[3:]
    return tokens[0].text, options


def _option_name(text: str) -> str:
    for prefix in (_EXTENSION, _UNSECURED_EXTENSION):
        if text.lower().startswith(prefix):
            return prefix + text[len(prefix) :]
    return text.lower()


@dataclass(frozen=True, slots=True)
class _Token:
    """A word, a quoted string without its quotes, `=` or `;`."""

    text: str
    is_quoted: bool

    def is_mark(self, mark: str) -> bool:
        return self.text == mark and not self.is_quoted


def _tokens(config: str) -> list[_Token]:
    tokens = []
    position = 0
    while position < len(config):
        match = _TOKEN.match(config, position)
        if match is None:
            raise _malformed()
        if match["quote"]:
            tokens.append(_Token(_ESCAPE.sub(_unescaped, match["quoted"]), is_quoted=True))
        elif not match["space"]:
            tokens.append(_Token(match[0], is_quoted=False))
        position = match.end()
    return tokens


def _unescaped(match: re.Match[str]) -> str:
    text = match[1]
    return chr(int(text, 8)) if text[0] in "01234567" else _CONTROL.get(text, text)
