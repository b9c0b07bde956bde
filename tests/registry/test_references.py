import pytest

from modelreg.registry.errors import InvalidReferenceError
from modelreg.registry.references import ModelReference, check_name, parse_reference, parse_version

DIGEST = "ab" * 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resnet50", ModelReference(model="resnet50")),
        ("resnet50:7", ModelReference(model="resnet50", version=7)),
        ("resnet50@production", ModelReference(model="resnet50", channel="production")),
        (f"resnet50@sha256:{DIGEST}", ModelReference(model="resnet50", digest=DIGEST)),
        ("models:/resnet50/7", ModelReference(model="resnet50", version=7)),
        ("models:/resnet50@production", ModelReference(model="resnet50", channel="production")),
        ("a.b_c-d:2147483647", ModelReference(model="a.b_c-d", version=2147483647)),
    ],
)
def test_each_form_is_read(text: str, expected: ModelReference) -> None:
    assert parse_reference(text) == expected


@pytest.mark.parametrize(
    "text",
    ["resnet50", "resnet50:7", "resnet50@production", f"resnet50@sha256:{DIGEST}"],
)
def test_a_reference_prints_as_it_was_written(text: str) -> None:
    assert str(parse_reference(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":1",
        "@production",
        "Resnet50",
        "resnet 50",
        "../x",
        "a/b",
        "/etc/passwd",
        "resnet50:",
        "resnet50:0",
        "resnet50:-1",
        "resnet50: 1",
        "resnet50:1.0",
        "resnet50:01",
        "resnet50:\uff11",
        "resnet50:2147483648",
        "resnet50:latest",
        "resnet50@latest",
        "latest",
        "resnet50@",
        "resnet50@sha256:abc",
        f"resnet50@sha256:{DIGEST.upper()}",
        "models:/resnet50/latest",
        "models:/a/b/1",
        "résnet",
        "resnet\u0301",
        "a\x00b",
        "a\n",
        "x" * 129,
        "%2e%2e",
        ".hidden",
        "-flag",
    ],
)
def test_what_is_no_reference_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(InvalidReferenceError) as raised:
        parse_reference(text)
    assert raised.value.exit_code == 2
    assert raised.value.hint()
    assert "\n" not in str(raised.value)


def test_a_name_of_128_characters_is_allowed() -> None:
    assert check_name("x" * 128) == "x" * 128


def test_the_message_says_what_kind_of_name_it_is() -> None:
    with pytest.raises(InvalidReferenceError, match="channel name 'Prod' is not allowed"):
        check_name("Prod", what="channel")


def test_versions_are_positive_and_bounded() -> None:
    assert parse_version("1") == 1
    with pytest.raises(InvalidReferenceError, match="not a version number"):
        parse_version("18446744073709551615")
