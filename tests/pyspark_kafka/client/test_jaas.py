"""`sasl.jaas.config` as Java users write it."""

from __future__ import annotations

import pytest

from pyspark_kafka.client.java_names import librdkafka_properties
from pyspark_kafka.errors import OptionError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


def translate(config: str, mechanism: str, **settings: str) -> dict[str, str]:
    given = {"sasl.mechanism": mechanism, "sasl.jaas.config": config}
    given |= {name.replace("_", "."): value for name, value in settings.items()}
    return librdkafka_properties(given, role="admin")


@pytest.mark.parametrize(
    "options",
    [
        'username="alice" password="it is = \\"so\\" ; \\\\"',
        'password="it is = \\"so\\" ; \\\\"  username=alice',
        '\n  username="alice"\n  password="it is = \\"so\\" ; \\\\"\n',
        'USERNAME = "alice" Password = "it is = \\"so\\" ; \\\\"',
    ],
)
def test_plain(options: str) -> None:
    assert translate(f"{PLAIN} required {options};", "PLAIN") == {
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": 'it is = "so" ; \\',
    }


def test_a_password_may_look_like_a_mark() -> None:
    translated = translate(f'{PLAIN} required username="=" password=";";', "PLAIN")
    assert (translated["sasl.username"], translated["sasl.password"]) == ("=", ";")


def test_scram() -> None:
    translated = translate(f"{SCRAM} required username=a password=b;", "SCRAM-SHA-512")
    assert (translated["sasl.username"], translated["sasl.password"]) == ("a", "b")


def test_oauthbearer_by_client_credentials() -> None:
    config = f'{OAUTH} required clientId="me" clientSecret="hush" scope="read";'
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    assert translate(
        config,
        "OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url="https://idp.example/token",
        sasl_login_callback_handler_class=handler,
    ) == {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": "hush",
        "sasl.oauthbearer.scope": "read",
        "sasl.oauthbearer.token.endpoint.url": "https://idp.example/token",
    }


def test_oauthbearer_unsecured() -> None:
    translated = translate(f'{OAUTH} required unsecuredLoginStringClaim_sub="bob";', "OAUTHBEARER")
    assert translated["sasl.oauthbearer.config"] == "principal=bob"
    assert translated["enable.sasl.oauthbearer.unsecure.jwt"] == "true"


@pytest.mark.parametrize(
    ("config", "mechanism", "message"),
    [
        (f"{PLAIN} required username=hush", "PLAIN", "malformed"),
        (f"{PLAIN} username=a password=hush;", "PLAIN", "malformed"),
        (f'{PLAIN} required username="hush;', "PLAIN", "malformed"),
        (f"{PLAIN} required username;", "PLAIN", "malformed"),
        ("hush", "PLAIN", "malformed"),
        (f"{PLAIN} required password=hush;", "PLAIN", "has no username"),
        (f"{PLAIN} required username=hush;", "PLAIN", "has no password"),
        (
            f"{PLAIN} required username=a password=hush;",
            "SCRAM-SHA-256",
            "kafka.sasl.mechanism.* to PLAIN",
        ),
        (f"{SCRAM} required username=a password=hush;", "", "not set.* to SCRAM-SHA-256"),
        ("com.sun.security.auth.module.Krb5LoginModule required;", "GSSAPI", "Kerberos"),
        ("com.example.hush.MyModule required;", "PLAIN", "only Java can load"),
        (f"{OAUTH} required clientId=hush;", "OAUTHBEARER", "has no clientsecret"),
        (f"{OAUTH} required;", "OAUTHBEARER", "clientId and clientSecret"),
    ],
)
def test_invalid_jaas_config_is_rejected_without_showing_it(
    config: str, mechanism: str, message: str
) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        translate(config, mechanism)
    assert "hush" not in str(caught.value)


def test_unknown_login_handler_is_rejected() -> None:
    with pytest.raises(OptionError, match="only Java can load"):
        translate(
            f"{OAUTH} required clientId=a clientSecret=b;",
            "OAUTHBEARER",
            sasl_login_callback_handler_class="com.example.Handler",
        )
