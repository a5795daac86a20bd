"""Whoever waits for a model can be freed; until then nothing is different."""

from __future__ import annotations

import threading
import time

import pytest

from agents.chat import Answer, ChatRequest, Usage
from agents.errors import ModelUnavailableError
from agents.models.abandonable import AbandonableModel
from agents.models.scripted import ScriptedModel
from tests.agents.models.model_contract import REQUEST, MakeModel, ModelContract


class TestAbandonableModel(ModelContract):
    @pytest.fixture
    def make(self) -> MakeModel:
        return lambda lines: AbandonableModel(ScriptedModel(lines, usage=Usage(10, 20, 0.5)))

    def test_a_call_that_is_abandoned_ends_at_once_and_counts_in_full(self) -> None:
        release, began = threading.Event(), threading.Event()

        def slow(request: ChatRequest) -> str:
            began.set()
            assert release.wait(20)
            return "too late"

        model = AbandonableModel(ScriptedModel(slow, usage=Usage(10, 20, 0.5)))
        errors: list[ModelUnavailableError] = []

        def ask() -> None:
            with pytest.raises(ModelUnavailableError) as raised:
                model.complete(REQUEST)
            errors.append(raised.value)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert began.wait(20)
        time.sleep(0.05)
        model.abandon()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert len(errors) == 3 and all(error.usage in (Usage(10, 20, 0.5), None) for error in errors)
        assert errors[0].usage is not None
        with pytest.raises(ModelUnavailableError, match="ended"):
            model.complete(REQUEST)
        release.set()
        for thread in threading.enumerate():
            if thread.name.startswith("call "):
                thread.join(20)

    def test_a_bug_in_a_model_stays_the_bug(self) -> None:
        def broken(request: ChatRequest) -> Answer:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            AbandonableModel(ScriptedModel(broken)).complete(REQUEST)
