from __future__ import annotations

import pytest

from agents.chat import Usage
from agents.errors import ModelUnavailableError
from agents.models.scripted import ScriptedModel
from tests.agents.models.model_contract import REQUEST, MakeModel, ModelContract


class TestScriptedModel(ModelContract):
    @pytest.fixture
    def make(self) -> MakeModel:
        return lambda lines: ScriptedModel(lines, usage=Usage(10, 20, 0.5))

    def test_a_function_answers_what_it_is_asked(self) -> None:
        model = ScriptedModel(lambda request: request.messages[-1].text.upper())
        assert model.complete(REQUEST).text == "WRITE A KERNEL."

    def test_a_script_ends(self) -> None:
        model = ScriptedModel([])
        with pytest.raises(ModelUnavailableError, match="ended"):
            model.complete(REQUEST)
