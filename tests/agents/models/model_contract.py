"""What every `ChatModel` owes its callers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest

from agents.chat import Answer, ChatModel, ChatRequest, Finish, Message, Role, Tool, Usage
from agents.errors import BudgetSpentError, ModelError, ModelUnavailableError, RateLimitedError, RequestRefusedError
from agents.models.scripted import Line

TOOL = Tool("build", "Compiles.", {"type": "object", "properties": {"source": {"type": "string"}}})
REQUEST = ChatRequest(
    (Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "Write a kernel.")), tools=(TOOL,), timeout_s=20.0
)
MakeModel = Callable[[Sequence[Line]], ChatModel]
"""A model that gives one line for each call, all of them to `REQUEST`."""


@dataclass
class Wallet:
    """A payer that notes each call: what was set aside for it, and what it cost."""

    paid: list[tuple[Usage, Usage]] = field(default_factory=list)
    refuses: bool = False

    def pay(self, most: Usage, call: Callable[[], Answer]) -> Answer:
        if self.refuses:
            raise BudgetSpentError("no dollar is left")
        try:
            answer = call()
        except ModelError as error:
            self.paid.append((most, error.usage or Usage()))
            raise
        self.paid.append((most, answer.usage))
        return answer


class ModelContract:
    """Subclasses have a fixture `make`."""

    def test_an_answer_is_whole_and_costs_no_more_than_announced(self, make: MakeModel) -> None:
        model = make(["int main() {}"])
        answer = model.complete(REQUEST)
        assert (answer.text, answer.tool_calls, answer.finish) == ("int main() {}", (), Finish.DONE)
        assert answer.model and answer.latency_s >= 0
        _within(answer.usage, model.most(REQUEST))

    def test_its_name_stands_before_and_after_a_call(self, make: MakeModel) -> None:
        model = make(["a"])
        name = model.name
        model.complete(REQUEST)
        assert name and model.name == name

    @pytest.mark.parametrize(
        "error",
        [RateLimitedError("slower", 0.25), ModelUnavailableError("gone"), RequestRefusedError("no such model")],
        ids=lambda error: type(error).__name__,
    )
    def test_without_an_answer_its_error_says_what_may_help(self, make: MakeModel, error: ModelError) -> None:
        model = make([error])
        with pytest.raises(type(error)) as caught:
            model.complete(REQUEST)
        assert "\n" not in str(caught.value)
        _within(caught.value.usage or Usage(), model.most(REQUEST))

    @pytest.mark.parametrize("line", ["answer", ModelUnavailableError("gone"), RequestRefusedError("no")], ids=str)
    def test_what_it_costs_was_paid_call_by_call(self, make: MakeModel, line: Line) -> None:
        model, wallet = make([line]), Wallet()
        request = replace(REQUEST, payer=wallet)
        if isinstance(line, ModelError):
            with pytest.raises(ModelError) as caught:
                model.complete(request)
            usage = caught.value.usage or Usage()
        else:
            usage = model.complete(request).usage
        assert usage == sum((cost for _, cost in wallet.paid), Usage())
        for most, cost in wallet.paid:
            _within(cost, most)
            _within(most, model.most(REQUEST))

    def test_what_is_not_paid_is_not_asked(self, make: MakeModel) -> None:
        model = make(["answer"])
        if model.most(REQUEST) == Usage():
            return  # it costs nothing
        with pytest.raises(BudgetSpentError):
            model.complete(replace(REQUEST, payer=Wallet(refuses=True)))
        assert model.complete(REQUEST).text == "answer", "nobody took the line"

    def test_an_error_does_not_outlive_its_call(self, make: MakeModel) -> None:
        model = make([RequestRefusedError("too long"), "answer"])
        with pytest.raises(RequestRefusedError):
            model.complete(REQUEST)
        assert model.complete(REQUEST).text == "answer"

    def test_many_threads_get_each_their_answer(self, make: MakeModel) -> None:
        lines = [f"answer {index}" for index in range(24)]
        model = make(lines)
        with ThreadPoolExecutor(len(lines)) as pool:
            answers = list(pool.map(model.complete, [REQUEST] * len(lines)))
        assert sorted(answer.text for answer in answers) == sorted(lines)


def _within(usage: Usage, most: Usage) -> None:
    assert usage.input_tokens <= most.input_tokens
    assert usage.output_tokens <= most.output_tokens
    assert usage.usd <= most.usd
