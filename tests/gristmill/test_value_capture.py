"""Values are copied only on demand, within a budget, and never those from which tokens or weights could be read."""

from __future__ import annotations

import pytest
import torch

from gristmill import value_capture
from gristmill.dispatch import Dispatcher
from gristmill.errors import SpoolError
from gristmill.site import Site
from gristmill.value_capture import CALLS_PER_PATTERN, VARIABLE, ValueCapture, from_environment


def site(operator: str, **axes: int) -> Site:
    return Dispatcher(environ={}).site(operator, torch.float32, axes, (1e-6,), lambda *x: x)


def test_activations_are_copied_and_weights_are_not() -> None:
    capture = ValueCapture(1 << 20)
    x, weight = torch.arange(32.0).reshape(2, 2, 8), torch.full((8,), 7.0)
    capture.note(site("rms_norm", hidden=8), (x, weight))
    (found,) = capture.take()
    assert (found.operator, found.axes, found.position, found.shape) == (
        "rms_norm",
        {"tokens": 4, "hidden": 8},
        0,
        (2, 2, 8),
    )
    assert torch.equal(torch.frombuffer(bytearray(found.content), dtype=torch.float32).reshape(2, 2, 8), x)
    x.zero_()
    assert torch.frombuffer(bytearray(found.content), dtype=torch.float32)[31] == 31, "a copy, not a view"
    assert capture.take() == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_strided_activations_are_copied_dense(dtype: torch.dtype) -> None:
    capture = ValueCapture(1 << 20)
    wide = torch.randn(4, 16).to(dtype)
    capture.note(site("silu_and_mul", intermediate=8), (wide[:, :8], wide[:, 8:]))
    gate, up = capture.take()
    assert gate.call == up.call
    assert torch.equal(torch.frombuffer(bytearray(up.content), dtype=dtype).reshape(4, 8), wide[:, 8:])


def test_logits_are_never_copied() -> None:
    capture = ValueCapture(1 << 20)
    capture.note(site("softmax", columns=8), (torch.randn(2, 8),))
    assert capture.take() == ()
    assert capture.left_bytes == 1 << 20


def test_whole_numbers_are_never_copied() -> None:
    capture = ValueCapture(1 << 20)
    capture.note(site("rms_norm", hidden=8), (torch.ones(2, 8, dtype=torch.int64), torch.ones(8)))
    assert capture.take() == ()


def test_the_budget_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_capture, "MAX_CALL_BYTES", 100)
    capture = ValueCapture(150)
    norm, weight = site("rms_norm", hidden=8), torch.ones(8)
    for rows in (1, 4, 2, 3):  # 32, 128 (too much for a call), 64, 96 (too much for what is left)
        capture.note(norm, (torch.ones(rows, 8), weight))
    assert sum(len(one.content) for one in capture.take()) == 96
    assert (capture.left_bytes, capture.passed_over) == (54, 2)


def test_a_pattern_has_a_few_calls_between_two_flushes() -> None:
    capture = ValueCapture(1 << 20)
    norm, weight = site("rms_norm", hidden=8), torch.ones(8)
    for _ in range(5):
        capture.note(norm, (torch.ones(1, 8), weight))
    assert len(capture.take()) == CALLS_PER_PATTERN
    capture.note(norm, (torch.ones(1, 8), weight))
    assert len(capture.take()) == 1


def test_it_is_off_unless_the_environment_says_how_much() -> None:
    assert from_environment({}) is None
    assert from_environment({VARIABLE: "0"}) is None
    capture = from_environment({VARIABLE: "4096"})
    assert capture is not None
    assert capture.left_bytes == 4096
    for text in ("yes", "-1", "1e6", "9" * 30):
        with pytest.raises(SpoolError, match="how many bytes"):
            from_environment({VARIABLE: text})
