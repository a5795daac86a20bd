from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.chat import Usage
from agents.errors import ModelError, ModelUnavailableError, RateLimitedError, RequestRefusedError
from agents.provider.failures import MAX_MESSAGE_CHARS, packed, retry_after_s, said, translated, unpacked

KEY = "a-key-of-no-known-shape"


class ProviderError(Exception):
    def __init__(self, message: str, status_code: int | None = None, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.response = SimpleNamespace(headers=headers or {})


@given(st.text(), st.text())
def test_no_message_holds_a_key_or_a_second_line(before: str, after: str) -> None:
    told = said(ProviderError(f"{before}{KEY}{after}"), {"MY_API_KEY": KEY})
    assert KEY not in told and len(told.splitlines()) == 1
    assert len(told) <= MAX_MESSAGE_CHARS + len("ProviderError: ")


@pytest.mark.parametrize("key", ["sk-ant-REDACTED", "sk-proj-0123****************wxyz", "gsk_0123456789abcdefghij"])
def test_what_looks_like_a_key_goes_too(key: str) -> None:
    assert key not in said(ProviderError(f"Incorrect API key provided: {key}."), {})


def test_short_values_are_no_secrets() -> None:
    assert "none" in said(ProviderError("there is none"), {"LOCAL_API_KEY": "none"})


def test_the_kind_of_an_error_is_told_once() -> None:
    error = ProviderError("litellm.ProviderError: ProviderError: OpenAIException - no such model")
    assert said(error, {}) == "ProviderError: no such model"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RequestRefusedError),
        (401, RequestRefusedError),
        (404, RequestRefusedError),
        (408, ModelUnavailableError),
        (429, RateLimitedError),
        (500, ModelUnavailableError),
        (503, ModelUnavailableError),
        (None, ModelUnavailableError),
    ],
)
def test_the_status_decides_which_error_it_is(status: int | None, kind: type[ModelError]) -> None:
    usage = Usage(3, 4, 0.5)
    error = translated(ProviderError("no", status, {"retry-after": "3"}), "openai/m", usage, {})
    assert type(error) is kind and error.usage == usage and str(error).startswith("openai/m: ")
    again = unpacked(packed(error))
    assert (type(again), str(again), again.usage) == (kind, str(error), usage)
    assert getattr(again, "retry_after_s", None) == (3.0 if status == 429 else None)


DATE_S = 1_792_567_680.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        *(({"retry-after": text}, number) for text, number in (("2", 2.0), ("0.25", 0.25), ("-1", None))),
        *(({"retry-after": text}, None) for text in ("nan", "inf", "", "soon", "Wed, 99 Oct 2026 07:28:00 GMT")),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after-ms": "junk", "retry-after": "2"}, 2.0),
        ({}, None),
    ],
)
def test_retry_after_is_seconds_a_date_or_nothing(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(ProviderError("", 429, headers), DATE_S) == seconds


@given(st.text())
def test_whatever_stands_there_is_no_failure_of_ours(text: str) -> None:
    for name in ("retry-after", "retry-after-ms"):
        found = retry_after_s(ProviderError("", 429, {name: text}))
        assert found is None or 0 <= found < float("inf")


def test_what_came_in_the_middle_of_a_stream_is_told_by_its_cause() -> None:
    error = ProviderError("wrapped", 503)
    error.original_exception = ProviderError("slow down", 429)
    assert isinstance(translated(error, "m", None, {}), RateLimitedError)
