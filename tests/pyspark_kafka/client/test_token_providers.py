"""Tests of token providers: the port, token files and the providers of vendors.

The vendors' services cannot be reached. Fakes with the documented interfaces of their libraries
take the place of the libraries, which are too large for the development environment.
"""

from __future__ import annotations

import base64
import datetime
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pyspark_kafka.client import factory
from pyspark_kafka.client.factory import check_settings
from pyspark_kafka.client.librdkafka.settings import LibrdkafkaSettings
from pyspark_kafka.client.native.oauth import cached, providers
from pyspark_kafka.client.native.settings import NativeSettings
from pyspark_kafka.errors import AuthenticationError, KafkaError, OptionError
from pyspark_kafka.options.config_providers import resolve
from pyspark_kafka.options.values import ClientOptions
from pyspark_kafka.tokens import Token
from pyspark_kafka.wire.sasl import OAuthBearerCredentials

PROVIDER = "sasl.oauthbearer.token.provider"
OIDC = "sasl.oauthbearer."
URL = f"{OIDC}token.endpoint.url"
SERVERS = (
    "b-1.c.x.c2.kafka.eu-west-1.amazonaws.com:9098,b-2.c.x.c2.kafka.eu-west-1.amazonaws.com:9098"
)
OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
HERE = "provider_of_test"

Provide = Callable[[Mapping[str, str]], Any]


@pytest.fixture(autouse=True)
def no_tokens_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "_tokens", {})


def options(kafka: Mapping[str, str], engine: Any = "auto") -> ClientOptions:
    given = {"bootstrap.servers": SERVERS, **kafka}
    return ClientOptions(bootstrap_servers=SERVERS, kafka=given, group_id="g", engine=engine)


def credentials(**kafka: str) -> OAuthBearerCredentials:
    security = NativeSettings.of(options({**OAUTH, **kafka})).security
    assert security is not None
    assert isinstance(security.credentials, OAuthBearerCredentials)
    return security.credentials


def token(**kafka: str) -> Token:
    return credentials(**kafka).source.token()


@pytest.fixture
def provide(monkeypatch: pytest.MonkeyPatch) -> Callable[[Provide], str]:
    """Return a function that installs a provider and returns its name."""

    def install(provider: Provide) -> str:
        module = ModuleType(HERE)
        module.nested = SimpleNamespace(token=provider)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, HERE, module)
        return f"{HERE}:nested.token"

    return install


def lasting(life_s: float, value: str = "hush") -> Token:
    return Token(value=value, expires_at=time.time() + life_s, principal="alice")


# --- the port ---


def test_a_provider_gets_its_settings(provide: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hush")
    calls = []

    def provider(settings: Mapping[str, str]) -> Token:
        calls.append(settings)
        return Token(value="t", expires_at=time.time() + 9, extensions={"logicalCluster": "lkc"})

    given = {
        PROVIDER: provide(provider),
        f"{PROVIDER}.own.secret": "${env:SECRET}",
        "sasl.oauthbearer.extensions": "traceId=7",
    }
    found = credentials(**resolve(given).values)
    assert (
        found.begin().evaluate_challenge(b"")
        == b"n,,\x01auth=Bearer t\x01logicalCluster=lkc\x01traceId=7\x01\x01"
    )
    assert calls == [{"bootstrap.servers": SERVERS, "own.secret": "hush"}]
    assert "hush" not in repr(found)


def test_a_token_is_refreshed_before_it_expires(
    provide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, passed = time.time(), [0.0]
    monkeypatch.setattr(time, "time", lambda: start + passed[0])
    tokens: Iterator[Token | None] = iter([lasting(100, "a"), None, lasting(200, "b"), None, None])
    found = credentials(**{PROVIDER: provide(lambda _: next(tokens))})
    values = []
    for passed[0] in (0, 79, 81, 82, 91, 180):  # no attempt soon after the failure at 81
        values.append(found.source.token().value)
    assert values == ["a", "a", "a", "a", "b", "b"]
    assert found.username == "alice"
    passed[0] = 201
    with pytest.raises(AuthenticationError):
        found.source.token()


def test_a_hanging_provider_does_not_delay_a_valid_token(
    provide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached, "_REFRESH_WAIT_S", 0.05)
    start, passed, calls = time.time(), [0.0], []
    monkeypatch.setattr(time, "time", lambda: start + passed[0])
    goes_on = threading.Event()

    def provider(_: Mapping[str, str]) -> Token:
        calls.append(passed[0])
        if len(calls) == 1:
            return lasting(100, "old")
        goes_on.wait(20)
        return lasting(100, "new")

    source = credentials(**{PROVIDER: provide(provider)}).source
    values = []
    for passed[0] in (0, 81, 82):
        values.append(source.token().value)
    goes_on.set()
    passed[0] = 101  # the old token has expired, and the running request is used
    found = source.token()
    assert [*values, found.value] == ["old", "old", "old", "new"]
    assert calls == [0, 81]
    source.discard(found)
    source.token()
    assert calls == [0, 81, 101], "a rejected token is not used again"


def raising(_settings: Mapping[str, str]) -> Token:
    raise ValueError("the secret is hush")


@pytest.mark.parametrize(
    "provider",
    [
        raising,
        lambda _: None,
        lambda _: "hush",
        lambda _: lasting(0),
        lambda _: lasting(float("nan")),
        lambda _: lasting(float("inf")),
        lambda _: lasting(time.time() * 999),  # milliseconds
        lambda _: lasting(9, "hush hush"),
        lambda _: lasting(9, "hush\n"),
        lambda _: lasting(9, ""),
        lambda _: Token(value=b"hush", expires_at=time.time() + 9),  # type: ignore[arg-type]
        lambda _: Token(value="hush", expires_at="hush"),  # type: ignore[arg-type]
        lambda _: Token(value="hush", expires_at=time.time() + 9, principal=1),  # type: ignore[arg-type]
        lambda _: Token(value="hush", expires_at=time.time() + 9, extensions={"auth": "hush"}),
        lambda _: Token(value="hush", expires_at=time.time() + 9, extensions={"a": 1}),  # type: ignore[dict-item]
        lambda _: Token(value="hush", expires_at=time.time() + 9, extensions=None),  # type: ignore[arg-type]
        lambda _: threading.Event().wait(60),
    ],
)
def test_a_failing_provider(
    provider: Provide, provide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached, "_TIMEOUT_S", 0.2)
    with pytest.raises(AuthenticationError) as raised:
        token(**{PROVIDER: provide(provider)})
    assert raised.value.option == f"kafka.{PROVIDER}"
    assert "hush" not in "".join(traceback.format_exception(raised.value))


def test_entry_point(provide: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("vault", provide(lambda _: lasting(9, "of-vault")), providers.GROUP)
    found = {"group": providers.GROUP}
    monkeypatch.setattr(
        providers,
        "entry_points",
        lambda group, name=None: (
            [point] if name in (None, "vault") and {"group": group} == found else []
        ),
    )
    assert token(**{PROVIDER: "vault"}).value == "of-vault"
    with pytest.raises(OptionError, match="vault"):
        token(**{PROVIDER: "volt"})


@pytest.mark.parametrize(
    ("kafka", "option"),
    [
        ({PROVIDER: "nobody"}, PROVIDER),
        ({PROVIDER: "no_such_module:token"}, PROVIDER),
        ({PROVIDER: "json:no_such_function"}, PROVIDER),
        ({PROVIDER: "json:__name__"}, PROVIDER),
        ({PROVIDER: "json:"}, PROVIDER),
        ({PROVIDER: "aws_msk_iam"}, PROVIDER),  # AWS's library is not installed
        ({PROVIDER: "azure", f"{PROVIDER}.region": "hush"}, f"{PROVIDER}.region"),
        ({PROVIDER: "json:loads", "sasl.mechanism": "PLAIN"}, PROVIDER),
        ({PROVIDER: "json:loads", URL: "https://hush"}, URL),
        ({PROVIDER: "json:loads", f"{OIDC}client.secret": "hush"}, f"{OIDC}client.secret"),
        ({PROVIDER: "json:loads", f"{OIDC}scope": "hush"}, f"{OIDC}scope"),
        ({PROVIDER: "json:loads", f"{OIDC}extensions": "auth=hush"}, f"{OIDC}extensions"),
        ({PROVIDER: "azure", f"{PROVIDER}.tenant.id": "hush"}, f"{PROVIDER}.client.id"),
        (
            {
                PROVIDER: "azure",
                f"{PROVIDER}.client.id": "c",
                f"{PROVIDER}.client.secret": "hush",
            },
            f"{PROVIDER}.tenant.id",
        ),
        (
            {
                PROVIDER: "aws_msk_iam",
                f"{PROVIDER}.profile": "p",
                f"{PROVIDER}.service.credential": "hush",
            },
            f"{PROVIDER}.profile",
        ),
        ({"enable.sasl.oauthbearer.unsecure.jwt": "false"}, URL),
        ({URL: "file:///no/such/file"}, URL),
        ({}, URL),
        ({"sasl.jaas.config": "OAuthBearerLoginModule required;"}, URL),
    ],
)
def test_sources_are_checked_on_the_driver(kafka: Mapping[str, str], option: str) -> None:
    with pytest.raises(OptionError) as raised:
        check_settings(options({**OAUTH, **kafka}), role="producer")
    assert raised.value.option == f"kafka.{option}"
    assert "hush" not in str(raised.value)


def test_provider_with_a_setting_that_its_engine_does_not_support() -> None:
    kafka = {PROVIDER: "json:loads", "ssl.cipher.suites": "x"}
    with pytest.raises(OptionError, match=r"'kafka\.ssl\.cipher\.suites'") as raised:
        check_settings(options({**OAUTH, **kafka}), role="consumer")
    assert raised.value.option == f"kafka.{PROVIDER}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.mechanism", "AWS_MSK_IAM"),
        ("sasl.login.callback.handler.class", "x.GcpLoginCallbackHandler"),
    ],
)
def test_missing_library_of_a_java_setting(name: str, value: str) -> None:
    with pytest.raises(OptionError) as raised:
        check_settings(options({**OAUTH, name: value}), role="consumer")
    assert raised.value.option == f"kafka.{name}"


@pytest.mark.parametrize("kafka", [{PROVIDER: "json:loads"}, {URL: "file:///hush"}, {}])
def test_librdkafka_refuses_what_it_does_not_support(kafka: Mapping[str, str]) -> None:
    with pytest.raises(OptionError) as raised:
        check_settings(options({**OAUTH, **kafka}, "librdkafka"), role="consumer")
    assert raised.value.option == f"kafka.{next(iter(kafka), URL)}"


def test_librdkafka_requests_tokens_from_an_endpoint() -> None:
    kafka = {URL: "http://127.0.0.1:1/", f"{OIDC}client.id": "me", f"{OIDC}client.secret": "hush"}
    found = LibrdkafkaSettings.of(options({**OAUTH, **kafka}, "librdkafka"), "consumer")
    for properties in (found.admin, found.consumer):
        assert properties["sasl.oauthbearer.method"] == "oidc"


@pytest.mark.parametrize(
    "kafka",
    [
        {PROVIDER: "json:loads"},
        {URL: Path(__file__).as_uri()},
        {"sasl.mechanism": "AWS_MSK_IAM"},
    ],
)
def test_sources_of_the_native_engine_select_it(
    kafka: Mapping[str, str], aws: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factory, "_missing_kernel", lambda: "the kernel is missing")
    assert check_settings(options({**OAUTH, **kafka}), role="consumer") == "native"


# --- token files ---


def jwt(life_s: float, subject: str = "alice") -> str:
    claims = json.dumps({"sub": subject, "exp": time.time() + life_s}).encode()
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.sig"


def test_token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, passed = time.time(), [0.0]
    monkeypatch.setattr(time, "time", lambda: start + passed[0])
    path = tmp_path / "a token"
    first, second = jwt(100), jwt(300, "bob")
    path.write_text(f"{first}\n")
    found = credentials(
        **{
            URL: path.as_uri(),
            "sasl.oauthbearer.extensions": "traceId=7",
            "sasl.jaas.config": "OAuthBearerLoginModule required;",  # as Java requires
        }
    )
    assert found.source.token().value == first
    assert found.source.token().extensions == {"traceId": "7"}
    path.write_text(second)
    assert found.source.token().value == first
    passed[0] = 81
    assert found.source.token().value == second
    assert found.username == "bob"
    for text in ("", jwt(-1), "a b", "\0"):
        passed[0] += 1_000
        path.write_text(text)
        with pytest.raises(AuthenticationError) as raised:
            found.source.token()
        assert raised.value.option == f"kafka.{URL}"


# --- vendors ---


def provider_settings(**kafka: str) -> dict[str, str]:
    request = credentials(**kafka).source.request  # type: ignore[attr-defined]
    assert isinstance(request, providers.ProviderRequest)
    return {PROVIDER: request.name, **dict(request.settings)}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of a fake `aws-msk-iam-sasl-signer-python`."""
    calls: list[Any] = []

    def call(name: str) -> Any:
        def generate(*arguments: Any) -> tuple[str, int]:
            calls.append((name, *arguments))
            return "signed", int(time.time() + 900) * 1000

        return generate

    names = ("", "_from_profile", "_from_role_arn", "_from_credentials_provider")
    signer = SimpleNamespace(**{f"generate_auth_token{name}": call(name) for name in names})
    install(monkeypatch, "aws_msk_iam_sasl_signer", MSKAuthTokenProvider=signer)
    install(monkeypatch, "botocore")
    install(monkeypatch, "botocore.credentials", CredentialProvider=object)
    return calls


def install(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    module = ModuleType(name)
    module.__spec__ = SimpleNamespace(name=name)  # type: ignore[assignment]
    module.__path__ = []
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


JAVA = "software.amazon.msk.auth.iam."
AWS_JAVA = {
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.client.callback.handler.class": f"{JAVA}IAMClientCallbackHandler",
    "sasl.jaas.config": f"{JAVA}IAMLoginModule required;",
}
AWS_JAVA_OAUTH = {
    "sasl.login.callback.handler.class": f"shaded.{JAVA}IAMOAuthBearerLoginCallbackHandler",
    "sasl.jaas.config": "OAuthBearerLoginModule required awsProfileName=dev;",
}


@pytest.mark.parametrize(
    ("kafka", "expected"),
    [
        (AWS_JAVA, ("", "eu-west-1")),
        ({"sasl.mechanism": "AWS_MSK_IAM"}, ("", "eu-west-1")),
        (AWS_JAVA_OAUTH, ("_from_profile", "eu-west-1", "dev")),
        (
            {
                **AWS_JAVA,
                "sasl.jaas.config": f"{JAVA}IAMLoginModule required awsDebugCreds=true "
                'awsRoleArn="arn:aws:iam::1:role/r" awsRoleSessionName="s";',
            },
            ("_from_role_arn", "eu-west-1", "arn:aws:iam::1:role/r", "s"),
        ),
        ({PROVIDER: "aws_msk_iam", f"{PROVIDER}.region": "x"}, ("", "x")),
        (
            {
                PROVIDER: "aws_msk_iam",
                "bootstrap.servers": "boot-a.c1.kafka-serverless.us-east-1.amazonaws.com:1",
            },
            ("", "us-east-1"),
        ),
        ({PROVIDER: "aws_msk_iam", "bootstrap.servers": "proxy:1"}, ("", "of-environment")),
    ],
)
def test_aws(
    kafka: Mapping[str, str], expected: Any, aws: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "of-environment")
    assert token(**kafka).value == "signed"
    assert aws == [expected]


@pytest.mark.parametrize(
    ("kafka", "option"),
    [
        ({**AWS_JAVA, "sasl.mechanism": "PLAIN"}, "sasl.client.callback.handler.class"),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": AWS_JAVA["sasl.jaas.config"]},
            "sasl.mechanism",
        ),
        (
            {**AWS_JAVA, "sasl.jaas.config": "x.IAMLoginModule required awsRoleExternalId=hush;"},
            "sasl.jaas.config",
        ),
    ],
)
def test_aws_settings_that_are_not_supported(
    kafka: Mapping[str, str], option: str, aws: list[Any]
) -> None:
    with pytest.raises(OptionError) as raised:
        credentials(**kafka)
    assert raised.value.option == f"kafka.{option}"
    assert "hush" not in str(raised.value)


def test_aws_region_that_is_unknown(aws: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(KafkaError) as raised:
        token(**{PROVIDER: "aws_msk_iam", "bootstrap.servers": "proxy:1"})
    assert raised.value.option == f"kafka.{PROVIDER}.region"


def test_databricks_service_credential(aws: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(get_credentials=lambda: "keys")
    named = SimpleNamespace(getServiceCredentialsProvider={"uc": session}.__getitem__)
    install(monkeypatch, "databricks")
    install(monkeypatch, "databricks.sdk")
    install(monkeypatch, "databricks.sdk.runtime", dbutils=SimpleNamespace(credentials=named))
    token(**{PROVIDER: "aws_msk_iam", f"{PROVIDER}.service.credential": "uc"})
    [(name, region, provider)] = aws
    assert (name, region, provider.load()) == ("_from_credentials_provider", "eu-west-1", "keys")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ("default", {})),
        ({"client.id": "c"}, ("default", {"managed_identity_client_id": "c"})),
        (
            {"tenant.id": "t", "client.id": "c", "client.secret": "hush"},
            ("secret", ("t", "c", "hush")),
        ),
    ],
)
def test_azure(settings: Mapping[str, str], expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def get_token(scope: str) -> Any:
        calls.append(scope)
        return SimpleNamespace(token=jwt(9), expires_on=int(time.time()) + 9)

    def default(**given: Any) -> Any:
        calls.append(("default", given))
        return SimpleNamespace(get_token=get_token)

    def secret(*given: Any) -> Any:
        calls.append(("secret", given))
        return SimpleNamespace(get_token=get_token)

    install(monkeypatch, "azure")
    install(
        monkeypatch, "azure.identity", DefaultAzureCredential=default, ClientSecretCredential=secret
    )
    given = {f"{PROVIDER}.{name}": value for name, value in settings.items()}
    token(**{PROVIDER: "azure", "bootstrap.servers": "ns.servicebus.windows.net:9093"}, **given)
    assert calls == [expected, "https://ns.servicebus.windows.net/.default"]


def test_google(monkeypatch: pytest.MonkeyPatch) -> None:
    expiry = datetime.datetime.now(datetime.UTC).replace(tzinfo=None, microsecond=0)
    expiry += datetime.timedelta(hours=1)
    found = SimpleNamespace(
        token="ya29.hush", expiry=expiry, service_account_email="a@b", refresh=print
    )
    for name in ("google", "google.auth.transport"):
        install(monkeypatch, name)
    install(monkeypatch, "google.auth", default=lambda **_: (found, "project"))
    install(monkeypatch, "google.auth.transport.requests", Request=object)
    monkeypatch.setattr(sys.modules["google"], "auth", sys.modules["google.auth"], raising=False)
    java = "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler"
    given = token(
        **{
            "sasl.login.callback.handler.class": java,
            "sasl.jaas.config": "OAuthBearerLoginModule required;",
        }
    )
    header, claims, signature = (
        base64.urlsafe_b64decode(part + "==") for part in given.value.split(".")
    )
    assert json.loads(header) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    expected = {"iss": "Google", "scope": "kafka", "sub": "a@b", "exp": given.expires_at}
    assert json.loads(claims).items() >= expected.items()
    assert signature == b"ya29.hush"
    assert given.expires_at == expiry.replace(tzinfo=datetime.UTC).timestamp()
