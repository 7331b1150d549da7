"""Tests of `sasl.jaas.config` in the syntax of Java."""

from __future__ import annotations

import pytest

from pyspark_kafka.client.java_names import librdkafka_properties
from pyspark_kafka.errors import OptionError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


def translate(config: str, mechanism: str, **settings: str) -> dict[str, str]:
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": config,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    properties = librdkafka_properties(given, role="admin")
    del properties["security.protocol"]
    return properties


@pytest.mark.parametrize(
    "options",
    [
        'username="alice" password="it is = \\"so\\" ; \\\\"',
        'password="it is = \\"so\\" ; \\\\"  username=alice',
        '\n  username="alice"\n  password="it is = \\"so\\" ; \\\\"\n',
        'USERNAME = "alice" Password = "it is = \\"so\\" ; \\\\"',
        "// it's\nusername='al\\151ce' /* ; */ password='it\\40is = \"so\" ; \\\\'",
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


def test_escapes_of_control_characters_and_octal_digits() -> None:
    quoted = "a\\tb\\4567\\018\\q"
    translated = translate(f"{PLAIN} required username=a password='{quoted}';", "PLAIN")
    assert translated["sasl.password"] == "a\tb\x2567\x018q"


def test_scram() -> None:
    translated = translate(f"{SCRAM} required username=a password=b;", "SCRAM-SHA-512")
    assert (translated["sasl.username"], translated["sasl.password"]) == ("a", "b")


def test_options_that_java_ignores_are_ignored() -> None:
    config = f"{SCRAM} required username=a password=b tokenauth=false serviceName=kafka;"
    assert translate(config, "SCRAM-SHA-256")["sasl.username"] == "a"


def test_oauthbearer_by_client_credentials() -> None:
    config = (
        f'{OAUTH} required clientId="me" clientSecret="hush" scope="read" '
        'extension_logicalCluster="lkc-1" Extension_b="2" ssl.truststore.location="ca.pem";'
    )
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    assert translate(
        config,
        "OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url="https://idp.example/token",
        sasl_login_callback_handler_class=handler,
    ) == {
        "https.ca.location": "ca.pem",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,b=2",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": "hush",
        "sasl.oauthbearer.scope": "read",
        "sasl.oauthbearer.token.endpoint.url": "https://idp.example/token",
    }


def test_oauthbearer_unsecured() -> None:
    options = (
        "unsecuredLoginStringClaim_sub=bob unsecuredLoginListClaim_scope='|a|b' "
        "unsecuredLoginLifetimeSeconds=60 unsecuredLoginExtension_traceId=7"
    )
    translated = translate(f"{OAUTH} required {options};", "OAUTHBEARER")
    assert translated["sasl.oauthbearer.config"] == (
        "principal=bob scope=a,b lifeSeconds=60 extension_traceId=7"
    )
    assert translated["enable.sasl.oauthbearer.unsecure.jwt"] == "true"


@pytest.mark.parametrize(
    "credentials",
    [
        {
            "sasl_oauthbearer_token_endpoint_url": "https://idp.example/token",
            "sasl_oauthbearer_client_credentials_client_id": "me",
        },
        {"sasl_oauthbearer_token_provider": "azure"},
    ],
)
def test_extensions_for_credentials_in_other_options(credentials: dict[str, str]) -> None:
    translated = translate(f"{OAUTH} required extension_A=1;", "OAUTHBEARER", **credentials)
    assert translated["sasl.oauthbearer.extensions"] == "A=1"


@pytest.mark.parametrize(
    ("config", "mechanism", "option", "facts"),
    [
        (f"{PLAIN} required username=hush", "PLAIN", "jaas.config", ""),
        (f"{PLAIN} username=a password=hush;", "PLAIN", "jaas.config", ""),
        (f'{PLAIN} required username="hush;', "PLAIN", "jaas.config", ""),
        (f"{PLAIN} required username;", "PLAIN", "jaas.config", ""),
        ("hush", "PLAIN", "jaas.config", ""),
        (f"{PLAIN} required password=hush;", "PLAIN", "jaas.config", "username"),
        (f"{PLAIN} required username=hush;", "PLAIN", "jaas.config", "password"),
        (
            f"{PLAIN} required username=a password=hush;",
            "SCRAM-SHA-256",
            "mechanism",
            "SCRAM-SHA-256",
        ),
        (f"{SCRAM} required username=a password=hush;", "", "mechanism", "ScramLoginModule"),
        (
            f'{SCRAM} required username=a password=hush tokenauth="True";',
            "SCRAM-SHA-256",
            "jaas.config",
            "tokenauth",
        ),
        (
            "com.sun.security.auth.module.Krb5LoginModule required;",
            "GSSAPI",
            "jaas.config",
            "Kerberos",
        ),
        ("com.example.hush.MyModule required;", "PLAIN", "jaas.config", ""),
        (f"{OAUTH} required clientId=hush;", "OAUTHBEARER", "jaas.config", "clientsecret"),
        *(
            (f"{OAUTH} required {options};", "OAUTHBEARER", "jaas.config", "")
            for options in (
                "clientId=a clientSecret=b hush=c",
                "clientId=a clientSecret=b extension_a='hush,b=2'",
                "clientId=a clientSecret=b ssl.truststore.location='hush.jks'",
                "clientId=a clientSecret=b unsecuredLoginExtension_hush=1",
                "unsecuredLoginStringClaim_sub=a unsecuredLoginNumberClaim_hush=1",
                "unsecuredLoginStringClaim_sub='a extension_hush=1'",
            )
        ),
    ],
)
def test_invalid_jaas_config_is_rejected_without_showing_it(
    config: str, mechanism: str, option: str, facts: str
) -> None:
    with pytest.raises(OptionError) as caught:
        translate(config, mechanism)
    assert caught.value.option == f"kafka.sasl.{option}"
    assert facts in caught.value.what
    assert "hush" not in str(caught.value)


def test_unknown_login_handler_is_rejected() -> None:
    with pytest.raises(OptionError) as caught:
        translate(
            f"{OAUTH} required clientId=a clientSecret=b;",
            "OAUTHBEARER",
            sasl_login_callback_handler_class="com.example.Handler",
        )
    assert caught.value.option == "kafka.sasl.login.callback.handler.class"
