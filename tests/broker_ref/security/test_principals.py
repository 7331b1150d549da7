"""Tests of principals: distinguished names, mapping rules and their encoding in Envelopes.

The expected distinguished names are those that Java's `X500Principal.getName` returns.
"""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from broker_ref.security.principals import (
    InvalidMappingRuleError,
    NoMatchingRuleError,
    Principal,
    decode_principal,
    distinguished_name,
    encode_principal,
    parse_mapping_rules,
)


def certificate(subject: x509.Name) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.DER)
    )


def attribute(oid: x509.ObjectIdentifier, value: str) -> x509.NameAttribute[str]:
    return x509.NameAttribute(oid, value)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (
            [
                attribute(NameOID.COUNTRY_NAME, "DE"),
                attribute(NameOID.ORGANIZATION_NAME, "Acme, Inc."),
                attribute(NameOID.ORGANIZATIONAL_UNIT_NAME, 'R+D "x"'),
                attribute(NameOID.COMMON_NAME, "#1 Ünique "),
            ],
            'CN=\\#1 Ünique\\ ,OU=R\\+D \\"x\\",O=Acme\\, Inc.,C=DE',
        ),
        (
            [attribute(NameOID.DOMAIN_COMPONENT, "test"), attribute(NameOID.USER_ID, "u")],
            "UID=u,DC=test",
        ),
        (
            [
                attribute(NameOID.COMMON_NAME, "a"),
                attribute(NameOID.EMAIL_ADDRESS, "a@b"),
            ],
            "1.2.840.113549.1.9.1=#1603614062,CN=a",
        ),
    ],
)
def test_distinguished_names(attributes: list[x509.NameAttribute[str]], expected: str) -> None:
    assert distinguished_name(certificate(x509.Name(attributes))) == expected


def test_attributes_of_one_part_are_joined() -> None:
    part = x509.RelativeDistinguishedName(
        [attribute(NameOID.COMMON_NAME, "a"), attribute(NameOID.USER_ID, "u")]
    )
    assert set(distinguished_name(certificate(x509.Name([part]))).split("+")) == {"CN=a", "UID=u"}


NAME = "CN=Alice,OU=QA,O=Tests"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("DEFAULT", NAME),
        ("RULE:^CN=(.*?),.*$/$1/", "Alice"),
        ("RULE:^CN=(.*?),.*$/$1/L", "alice"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U", "ALICE@QA"),
        ("RULE:^CN=(.*?),.*$/$1$2/", "Alice$2"),
        ("RULE:^CN=(.*?),.*$/\\$1/", "$1"),
        ("RULE:^UID=(.*)$/$1/, RULE:^CN=([^,]+).*$/$1/U ,DEFAULT", "ALICE"),
        ("RULE:^UID=(.*)$/$1/,DEFAULT", NAME),
    ],
)
def test_the_first_matching_rule_maps_the_name(rules: str, expected: str) -> None:
    assert parse_mapping_rules(rules).name(NAME) == expected


def test_a_name_without_a_matching_rule() -> None:
    with pytest.raises(NoMatchingRuleError, match="Alice"):
        parse_mapping_rules("RULE:^UID=(.*)$/$1/").name(NAME)


@pytest.mark.parametrize("rules", ["default", "RULE:^CN=/", "RULE:(/x/", "RULE:a/b/x"])
def test_invalid_rules_are_rejected(rules: str) -> None:
    with pytest.raises(InvalidMappingRuleError):
        parse_mapping_rules(rules)


@given(st.text(), st.text(alphabet="abc"))
def test_principals_survive_encoding(name: str, kind: str) -> None:
    principal = Principal(name, kind)
    assert decode_principal(encode_principal(principal)) == principal


def test_a_principal_is_encoded_as_in_kafka() -> None:
    encoded = bytes.fromhex("0000055573657206616c6963650000")
    assert encode_principal(Principal("alice")) == encoded


@given(st.binary(max_size=40))
def test_invalid_principals_are_not_decoded(data: bytes) -> None:
    decode_principal(data)
    decode_principal(b"\x00\x00" + data)


def test_half_a_principal_is_not_decoded() -> None:
    encoded = encode_principal(Principal("alice"))
    assert [decode_principal(encoded[:end]) for end in range(len(encoded))] == [None] * len(encoded)
