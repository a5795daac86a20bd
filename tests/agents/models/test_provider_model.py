"""A model over real sockets: what providers do, and what comes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from agents.caps import BudgetCaps
from agents.chat import ChatRequest, Finish, Message, Role, ToolCall
from agents.errors import ModelError, ModelUnavailableError, RateLimitedError, RequestRefusedError
from agents.ledger import Ledger
from agents.models.provider_client import ProviderClient
from agents.models.provider_model import ProviderModel
from agents.models.scripted import Line
from agents.payment import Payment
from agents.provider.received import MAX_ANSWER_BYTES
from agents.provider.wire import Price, Route
from benchmarks.openai_server import Behaviour, OpenAIServer, Script
from tests.agents.models.conftest import KEY
from tests.agents.models.model_contract import REQUEST, TOOL, MakeModel, ModelContract

PRICE = Price(10e-6, 100e-6)
Serve = Callable[[Script], OpenAIServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[OpenAIServer] = []

    def serve(script: Script) -> OpenAIServer:
        servers.append(OpenAIServer(script).__enter__())
        return servers[-1]

    yield serve
    for server in servers:
        server.__exit__(None, None, None)


def model_at(client: ProviderClient, server: OpenAIServer) -> ProviderModel:
    return ProviderModel(client, Route("openai/gpt-test", server.url, price=PRICE))


def behaviour(line: Line) -> Behaviour:
    if isinstance(line, RateLimitedError):
        return Behaviour(status=429, retry_after_s=line.retry_after_s)
    if isinstance(line, ModelError):
        return Behaviour(status=500 if isinstance(line, ModelUnavailableError) else 404)
    assert isinstance(line, str)
    return Behaviour(line)


class TestProviderModel(ModelContract):
    @pytest.fixture
    def make(self, client: ProviderClient, serve: Serve) -> MakeModel:
        return lambda lines: model_at(client, serve(map(behaviour, lines)))


def failure(client: ProviderClient, server: OpenAIServer, timeout_s: float = 20.0) -> ModelError:
    with pytest.raises(ModelError) as caught:
        model_at(client, server).complete(replace(REQUEST, timeout_s=timeout_s))
    assert "\n" not in str(caught.value)
    return caught.value


def test_the_whole_conversation_reaches_the_provider(client: ProviderClient, serve: Serve) -> None:
    server = serve(Behaviour("good"))
    call = ToolCall("call_0", "build", '{"source": "ä\ud800"}')
    conversation = (
        *REQUEST.messages,
        Message(Role.ASSISTANT, "I build it.", (call,)),
        Message(Role.TOOL, "bad\0\udcff bytes", tool_call_id="call_0"),
    )
    model_at(client, server).complete(ChatRequest(conversation, (TOOL,), 100, 0.5))
    (request,) = server.requests
    assert [message["role"] for message in request["messages"]] == ["system", "user", "assistant", "tool"]
    assert request["messages"][2]["tool_calls"][0]["function"] == {"name": "build", "arguments": '{"source": "ä?"}'}
    assert request["messages"][3] == {"role": "tool", "content": "bad?? bytes", "tool_call_id": "call_0"}
    assert request["tools"][0]["function"]["parameters"] == TOOL.parameters
    assert (request["max_tokens"], request["temperature"], request["stream"]) == (100, 0.5, True)


def test_tool_calls_come_whole_and_malformed_ones_as_they_are(client: ProviderClient, serve: Serve) -> None:
    server = serve(Behaviour("I call.", (("build", '{"source": "int x;"}'), ("check", "not {json"))))
    answer = model_at(client, server).complete(REQUEST)
    assert (answer.text, answer.finish) == ("I call.", Finish.TOOLS)
    assert answer.tool_calls == (
        ToolCall("call_0", "build", '{"source": "int x;"}'),
        ToolCall("call_1", "check", "not {json"),
    )


def streamed(*choices: str) -> bytes:
    head = b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    return b"".join(head + choice.encode("latin-1") + b"}]}\n\n" for choice in choices) + b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("delta", "calls"),
    [
        ('{"index":0,"function":{"name":null,"arguments":"{}"}}', (ToolCall("call_0", "", "{}"),)),
        ('{"index":0,"id":"a","function":{"name":"n","arguments":null}}', (ToolCall("a", "n", ""),)),
        ('{"index":7,"id":"a","function":{"name":"n","arguments":"\\ud800"}}', (ToolCall("a", "n", "?"),)),
    ],
)
def test_tool_calls_that_lack_something(
    client: ProviderClient, serve: Serve, delta: str, calls: tuple[ToolCall, ...]
) -> None:
    server = serve(Behaviour(raw=streamed(f'"delta":{{"tool_calls":[{delta}]}},"finish_reason":"tool_calls"')))
    answer = model_at(client, server).complete(REQUEST)
    assert (answer.tool_calls, answer.finish) == (calls, Finish.TOOLS)


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ("stop", Finish.DONE),
        ("length", Finish.LENGTH),
        ("content_filter", Finish.REFUSED),
        ("safety", Finish.REFUSED),
        ("MAX_OUTPUT_TOKENS", Finish.LENGTH),
        ("a word of tomorrow", Finish.DONE),
    ],
)
def test_why_an_answer_ended(client: ProviderClient, serve: Serve, finish: str, expected: Finish) -> None:
    answer = model_at(client, serve(Behaviour("some text", finish=finish))).complete(REQUEST)
    assert (answer.text, answer.finish) == ("some text", expected)


@pytest.mark.parametrize("text", ["", "Sure: "])
def test_what_a_model_says_in_its_refusal_is_one_in_any_language(
    client: ProviderClient, serve: Serve, text: str
) -> None:
    refusal = "Lo siento, no puedo ayudar con eso."
    answer = model_at(client, serve(Behaviour(text, refusal=refusal))).complete(REQUEST)
    assert (answer.text, answer.finish) == (text or refusal, Finish.REFUSED)


@pytest.mark.parametrize("finish", ["error", "insufficient_system_resource"])
def test_a_server_that_says_it_failed_halfway_has_not_answered(
    client: ProviderClient, serve: Serve, finish: str
) -> None:
    error = failure(client, serve(Behaviour("half an answ", finish=finish)))
    assert isinstance(error, ModelUnavailableError) and error.usage is not None and error.usage.usd > 0


def test_an_empty_answer_is_an_answer(client: ProviderClient, serve: Serve) -> None:
    answer = model_at(client, serve(Behaviour(""))).complete(REQUEST)
    assert (answer.text, answer.tool_calls, answer.finish) == ("", (), Finish.DONE)


def test_usage_and_money_are_the_providers(client: ProviderClient, serve: Serve) -> None:
    answer = model_at(client, serve(Behaviour("x" * 400))).complete(REQUEST)
    assert answer.usage == PRICE.of(7, 101)


def event(choice: str, usage: str = "null") -> bytes:
    head = '"id":"1","object":"chat.completion.chunk","created":1,"model":"m"'
    return f'data: {{{head},"choices":[{choice}],"usage":{usage}}}\n\n'.encode()


def counting(usage: str) -> bytes:
    """A stream that says `hi`, and reports this."""
    return event('{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}', usage) + b"data: [DONE]\n\n"


USAGES = (
    '{"prompt_tokens":-5,"completion_tokens":-7}',
    '{"prompt_tokens":10000000000000000000,"completion_tokens":1}',
    "{}",
)


@pytest.mark.parametrize("usage", USAGES)
def test_whatever_a_server_says_it_counted_the_budget_can_take(
    client: ProviderClient, serve: Serve, tmp_path: Path, usage: str
) -> None:
    server = serve(Behaviour(raw=counting(usage)))
    with Ledger(tmp_path / "ledger.db") as ledger:
        payment = Payment(ledger.budget("s", BudgetCaps()), "a call")
        answer = model_at(client, server).complete(replace(REQUEST, payer=payment))
        assert answer.usage.usd > 0 and payment.close() == answer.usage


def test_a_contradictory_report_costs_no_more_than_the_dearest_tier(client: ProviderClient, serve: Serve) -> None:
    details = '{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":-100000}}'
    server = serve(Behaviour(raw=counting(details)))
    model = ProviderModel(client, Route("openai/gpt-5-mini", server.url))
    assert 0 < model.complete(REQUEST).usage.usd < 1e-3


def test_usage_is_estimated_where_none_is_reported(client: ProviderClient, serve: Serve) -> None:
    server = serve(Behaviour("word " * 400, usage=False))
    answer = model_at(client, server).complete(REQUEST)
    assert 200 <= answer.usage.output_tokens <= 2000 and answer.usage.usd > 0


@pytest.mark.parametrize("size_bytes", [MAX_ANSWER_BYTES, 2 * MAX_ANSWER_BYTES])
def test_answers_of_a_megabyte_come_and_longer_ones_are_cut(
    client: ProviderClient, serve: Serve, size_bytes: int
) -> None:
    """Pieces that are all alike are no reason to stop either."""
    answer = model_at(client, serve(Behaviour("x" * size_bytes, pieces=512))).complete(REQUEST)
    assert len(answer.text) == MAX_ANSWER_BYTES
    assert answer.finish is (Finish.DONE if size_bytes == MAX_ANSWER_BYTES else Finish.LENGTH)


def test_endless_thoughts_are_cut(client: ProviderClient, serve: Serve) -> None:
    choice = json.dumps({"index": 0, "delta": {"reasoning_content": "hm " * 10_000}, "finish_reason": None})
    server = serve(Behaviour(raw=b"".join([event(choice) for _ in range(100)])))
    answer = model_at(client, server).complete(REQUEST)
    assert (answer.text, answer.finish) == ("", Finish.LENGTH)
    assert answer.usage.output_tokens < MAX_ANSWER_BYTES


def test_text_that_no_file_takes_is_replaced(client: ProviderClient, serve: Serve) -> None:
    server = serve(Behaviour(raw=streamed('"delta":{"content":"a\\ud800\\u0000b"},"finish_reason":"stop"')))
    assert model_at(client, server).complete(REQUEST).text == "a??b"


@pytest.mark.parametrize(
    "raw",
    [
        streamed('"delta":{"content":"\xff\xfe"},"finish_reason":"stop"'),
        b"data: {{{\n\n",
        b"<html>busy</html>",
        b"",
        b'data: {"error": {"message": "overloaded", "code": 503}}\n\n',
        b"data: [DONE]\n\n",
        b"data: []\n\n",
        b'data: {"choices": 3}\n\n',
    ],
)
def test_a_stream_that_is_none_is_unavailable(client: ProviderClient, serve: Serve, raw: bytes) -> None:
    assert isinstance(failure(client, serve(Behaviour(raw=raw))), ModelUnavailableError)


@pytest.mark.parametrize("cut", ["breaks_after", "ends_after"])
@pytest.mark.parametrize("pieces", [2, 9])
def test_an_answer_that_breaks_off_is_noticed_and_what_came_is_paid(
    client: ProviderClient, serve: Serve, cut: str, pieces: int
) -> None:
    server = serve(Behaviour("word " * 1000, pieces=16, **{cut: pieces}))
    error = failure(client, server)
    assert isinstance(error, ModelUnavailableError)
    assert error.usage is not None and error.usage.usd > 0
    assert error.usage.output_tokens >= (pieces - 2) * 5000 // 16 // 4


@pytest.mark.parametrize("slow", [Behaviour("hi", delay_s=30), Behaviour("hi there", pause_s=10)])
def test_a_slow_answer_ends_with_its_time(client: ProviderClient, serve: Serve, slow: Behaviour) -> None:
    error = failure(client, serve(slow), timeout_s=0.5)
    assert isinstance(error, ModelUnavailableError) and "0.5 s" in str(error)
    assert error.usage is not None and error.usage.input_tokens > 0


def test_retry_after_is_passed_on(client: ProviderClient, serve: Serve) -> None:
    error = failure(client, serve(Behaviour(status=429, retry_after_s=7.5)))
    assert isinstance(error, RateLimitedError) and error.retry_after_s == 7.5
    error = failure(client, serve(Behaviour(status=429)))
    assert isinstance(error, RateLimitedError) and error.retry_after_s is None


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
def test_what_will_not_pass_is_refused(client: ProviderClient, serve: Serve, status: int) -> None:
    server = serve(Behaviour(status=status))
    error = failure(client, server)
    assert isinstance(error, RequestRefusedError) and error.usage is None
    assert len(server.requests) == 1


def test_parameters_that_a_provider_does_not_know_are_left_out_and_then_it_is_refused(
    client: ProviderClient, serve: Serve
) -> None:
    assert isinstance(failure(client, serve(Behaviour(status=422))), RequestRefusedError)
    server = serve([Behaviour(status=422), Behaviour("answer")])
    assert model_at(client, server).complete(REQUEST).text == "answer"


@pytest.mark.parametrize("status", [408, 500, 502, 503, 529])
def test_what_may_pass_is_unavailable_and_asked_once(client: ProviderClient, serve: Serve, status: int) -> None:
    server = serve(Behaviour(status=status))
    assert isinstance(failure(client, server), ModelUnavailableError)
    assert len(server.requests) == 1


def test_a_server_that_is_not_there_is_unavailable(client: ProviderClient) -> None:
    with OpenAIServer() as server:
        pass
    error = failure(client, server)
    assert isinstance(error, ModelUnavailableError) and error.usage is None


def test_no_message_holds_a_key_and_no_other_server_gets_it(client: ProviderClient, serve: Serve) -> None:
    server = serve(Behaviour(status=401, message=f"Incorrect API key provided: {KEY}. See sk-other-0123456789abcdef"))
    error = failure(client, server)
    assert KEY not in str(error) and "sk-other" not in str(error)
    assert "[key]" in str(error)
    assert server.headers[0]["authorization"] == "bearer none"
    named = ProviderModel(client, Route("openai/gpt-test", server.url, key_variable="OPENAI_API_KEY"))
    with pytest.raises(RequestRefusedError):
        named.complete(REQUEST)
    assert server.headers[1]["authorization"] == f"bearer {KEY}"


def test_no_answer_holds_a_key(client: ProviderClient, serve: Serve) -> None:
    said = Behaviour(f"// {KEY}\nint global;", tool_calls=(("build", json.dumps({"files": {"main.cpp": KEY}})),))
    answer = model_at(client, serve(said)).complete(REQUEST)
    assert answer.text == "// [key]\nint global;"
    assert [json.loads(call.arguments) for call in answer.tool_calls] == [{"files": {"main.cpp": "[key]"}}]


def test_a_hundred_and_twenty_eight_at_once_lose_no_answer(client: ProviderClient, serve: Serve) -> None:
    """The server answers nobody before all are there, and then each what it asked for."""
    server = serve(lambda request: Behaviour(request["messages"][0]["content"], waits_for=128))
    model = model_at(client, server)
    asked = [f"question {index}" for index in range(128)]
    requests = [ChatRequest((Message(Role.USER, text),), timeout_s=60.0) for text in asked]
    with ThreadPoolExecutor(128) as pool:
        assert [answer.text for answer in pool.map(model.complete, requests)] == asked
    assert server.most_open_requests == 128


def test_among_failures_no_answer_is_lost_or_mixed_up(client: ProviderClient, serve: Serve) -> None:
    odd = [
        Behaviour(status=500),
        Behaviour(status=429, retry_after_s=1),
        Behaviour("x" * 50, breaks_after=2),
        Behaviour(raw=b"data: {{{\n\n"),
    ]

    def say(request):
        number = int(request["messages"][0]["content"])
        return odd[number // 2 % 4] if number % 2 else Behaviour(str(number), pause_s=0.002)

    model = model_at(client, serve(say))

    def ask(number: int) -> str:
        try:
            return model.complete(ChatRequest((Message(Role.USER, str(number)),), timeout_s=60.0)).text
        except ModelError as error:
            return type(error).__name__

    with ThreadPoolExecutor(64) as pool:
        told = list(pool.map(ask, range(96)))
    assert told[::2] == [str(number) for number in range(0, 96, 2)]
    assert set(told[1::2]) == {"ModelUnavailableError", "RateLimitedError"}


@pytest.mark.parametrize(
    ("model", "known"), [("anthropic/claude-sonnet-4-5", True), ("gpt-5", True), ("openai/made-up", False)]
)
def test_prices_are_those_that_came_with_litellm(client: ProviderClient, model: str, known: bool) -> None:
    priced = ProviderModel(client, Route(model))
    assert priced.price_known is known
    assert (priced.most(REQUEST).usd > 0) is known


def test_most_is_no_less_than_what_a_tokenizer_could_make_of_a_request(client: ProviderClient, serve: Serve) -> None:
    request = ChatRequest((Message(Role.USER, "ä\u2028\U0001d54f" * 100),), (TOOL,), max_output_tokens=50)
    most = model_at(client, serve(Behaviour())).most(request)
    assert most.input_tokens >= len(("ä\u2028\U0001d54f" * 100).encode()) + len(json.dumps(TOOL.parameters))
    assert most.output_tokens == 50
    assert most.usd == pytest.approx(most.input_tokens * 10e-6 + 50 * 100e-6)
