"""What litellm raises, as the three errors that the search tells apart, and without anything secret in them."""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Mapping
from typing import Any

from agents.chat import Usage
from agents.errors import ModelError, ModelUnavailableError, RateLimitedError, RequestRefusedError
from agents.provider.wire import Failure, Fault, clean

MAX_MESSAGE_CHARS = 300
BLOT = "[key]"
MIN_SECRET_CHARS = 6
"""Shorter values of key variables are placeholders, and would be words of ordinary sentences."""
KEY_SHAPED = re.compile(r"\b(?:sk|pk|key|gsk|xai|hf|AIza)[-_]?[A-Za-z0-9_*\-]{12,}")
NESTED_KINDS = re.compile(r"^(?:(?:litellm\.)?\w+(?:Error|Exception|Timeout)(?::| -) )+")
"""litellm puts the kind of an error in front of its message, and so does whatever it came from."""
REFUSING_STATUSES = (400, 401, 402, 403, 404, 405, 413, 422)
"""Of a provider that will not take the same request later either; 408, 409, 425 and 5xx pass."""
RATE_LIMITED_STATUS = 429


def translated(error: Exception, model: str, usage: Usage | None, secrets: Mapping[str, str]) -> ModelError:
    """The `ModelError` for what a call of litellm raised; `usage` is what was billed nevertheless."""
    error = getattr(error, "original_exception", None) or error
    status = getattr(error, "status_code", None)
    message = f"{model}: {said(error, secrets)}"
    if status == RATE_LIMITED_STATUS:
        return RateLimitedError(message, retry_after_s(error), usage)
    if status in REFUSING_STATUSES:
        return RequestRefusedError(message, usage)
    return ModelUnavailableError(message, usage)


def said(error: BaseException, secrets: Mapping[str, str]) -> str:
    """One bounded line, with the kind of the error once, and with every key blotted out."""
    text = NESTED_KINDS.sub("", " ".join(clean(str(error)).split()))
    for value in sorted(secrets.values(), key=len, reverse=True):
        if len(value) >= MIN_SECRET_CHARS:
            text = text.replace(value, BLOT)
    text = KEY_SHAPED.sub(BLOT, text)
    return f"{type(error).__name__}: {text[:MAX_MESSAGE_CHARS]}"


def retry_after_s(error: Exception, now_s: float | None = None) -> float | None:
    """What the provider's `Retry-After` header asks for, in seconds or as a date (RFC 9110, 10.2.3), or what its
    `retry-after-ms` does, which some send as well; `now_s` is the time since the epoch.
    """
    now_s = time.time() if now_s is None else now_s
    response = getattr(error, "response", None)
    for headers in (getattr(response, "headers", None), getattr(error, "litellm_response_headers", None)):
        if headers is None:
            continue
        milliseconds = _number(headers.get("retry-after-ms"))
        value = headers.get("retry-after")
        found = _number(value) if milliseconds is None else milliseconds / 1e3
        if found is None:
            found = _until(value, now_s)
        if found is not None:
            return found
    return None


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number < float("inf") else None


def _until(value: Any, now_s: float) -> float | None:
    """Seconds to a date; 0 if it has passed."""
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now_s)
    except (TypeError, ValueError, OverflowError):
        return None


def packed(error: ModelError) -> Failure:
    """For the wire."""
    if isinstance(error, RateLimitedError):
        return Failure(Fault.RATE_LIMITED, str(error), error.retry_after_s, error.usage)
    fault = Fault.REFUSED if isinstance(error, RequestRefusedError) else Fault.UNAVAILABLE
    return Failure(fault, str(error), None, error.usage)


def unpacked(failure: Failure) -> ModelError:
    """From the wire."""
    if failure.fault is Fault.RATE_LIMITED:
        return RateLimitedError(failure.message, failure.retry_after_s, failure.usage)
    kind = RequestRefusedError if failure.fault is Fault.REFUSED else ModelUnavailableError
    return kind(failure.message, failure.usage)
