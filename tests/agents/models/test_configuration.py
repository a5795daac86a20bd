from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.chat import ChatModel
from agents.errors import ModelSettingsError
from agents.models import configuration
from agents.models.configuration import ModelSettings, composed, from_environment, opened
from agents.models.provider_client import ProviderClient
from agents.provider.wire import Price
from benchmarks.openai_server import Behaviour, OpenAIServer
from tests.agents.models.model_contract import REQUEST


def from_file(tmp_path: Path, content: str) -> tuple[ModelSettings, ...]:
    path = tmp_path / "models.toml"
    path.write_text(content)
    return from_environment({"MILL_MODELS_FILE": str(path)})


def test_without_models_there_are_none() -> None:
    assert from_environment({}) == from_environment({"MILL_MODELS": " "}) == ()


def test_a_list_of_models_stand_in_for_each_other() -> None:
    assert from_environment({"MILL_MODELS": "openai/a@50, vertex_ai/b@20250514,vertex_ai/c@20250514@7"}) == (
        ModelSettings("openai/a", 50, fallbacks=("vertex_ai/b@20250514", "vertex_ai/c@20250514")),
        ModelSettings("vertex_ai/b@20250514", fallbacks=("openai/a", "vertex_ai/c@20250514")),
        ModelSettings("vertex_ai/c@20250514", 7, fallbacks=("openai/a", "vertex_ai/b@20250514")),
    )


def test_a_file_says_more(tmp_path: Path) -> None:
    (one, other) = from_file(
        tmp_path,
        """
        [models."openai/a"]
        requests_per_min = 50
        tokens_per_min = 40000
        concurrency = 16
        usd_per_million_input_tokens = 3
        usd_per_million_output_tokens = 15.0
        max_output_tokens = 4096
        temperature = 0.8
        api_base = "http://127.0.0.1:8000/v1"
        key_variable = "LOCAL_API_KEY"
        fallbacks = ["openai/b"]
        [models."openai/b"]
        """,
    )
    assert one.limits.requests_per_min == 50 and one.limits.concurrency == 16
    assert one.route.price == Price(3e-6, 15e-6)
    assert (one.route.api_base, one.route.key_variable) == ("http://127.0.0.1:8000/v1", "LOCAL_API_KEY")
    assert other == ModelSettings("openai/b")


@pytest.mark.parametrize("names", [",", "a,", "a,a", "a@", "a@0", "a@-1", "a@x", "a@1.5", "@5", "a b", "ä", "a@1,a@2"])
def test_bad_lists_are_one_line(names: str) -> None:
    with pytest.raises(ModelSettingsError, match=r"^MILL_MODELS: ") as caught:
        from_environment({"MILL_MODELS": names})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "expected tables"),
        ("models = 3", "expected tables"),
        ("[models]", "expected tables"),
        ("[other]\n[models.a]", "expected tables"),
        ("[models", "not TOML"),
        ("[models]\na = 3", "expected a table"),
        ("[models.a]\nrequest_per_min = 3", "unknown setting 'request_per_min'; there are requests_per_min"),
        ("[models.a]\nrequests_per_min = 0", "whole number"),
        ("[models.a]\nconcurrency = true", "whole number"),
        ("[models.a]\ntemperature = nan", "a number from 0 on"),
        ("[models.a]\ntemperature = '1'", "a number from 0 on"),
        ("[models.a]\nusd_per_million_input_tokens = 1", "both prices"),
        ("[models.a]\nfallbacks = 'b'", "a list of models"),
        ("[models.a]\nfallbacks = ['a']", "other models"),
        ("[models.a]\nfallbacks = ['b', 'b']", "other models"),
        ("[models.a]\napi_base = 'localhost'", "http address"),
        ("[models.a]\nkey_variable = 'sk-0123'", "name of a variable"),
        ("[models.' ']", "as litellm names it"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, content: str, told: str) -> None:
    with pytest.raises(ModelSettingsError) as caught:
        from_file(tmp_path, content)
    assert told in str(caught.value) and "models.toml" in str(caught.value)
    assert "\n" not in str(caught.value) and "sk-0123" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelSettingsError, match="No such file"):
        from_environment({"MILL_MODELS_FILE": str(tmp_path / "none")})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelSettingsError, match="not TOML"):
        from_environment({"MILL_MODELS_FILE": str(tmp_path / "binary")})


def test_both_ways_at_once_are_refused() -> None:
    with pytest.raises(ModelSettingsError, match="both set"):
        from_environment({"MILL_MODELS": "a", "MILL_MODELS_FILE": "b"})


@given(st.text())
def test_any_list_is_models_or_one_line(names: str) -> None:
    try:
        found = from_environment({"MILL_MODELS": names})
    except ModelSettingsError as error:
        assert "\n" not in str(error)
    else:
        assert len({one.model for one in found}) == len(found)


def test_without_models_no_process_starts_and_keys_go_all_the_same() -> None:
    environ = {"OPENAI_API_KEY": "sk-0123456789"}
    with opened((), print, environ) as models:
        assert models == ()
    assert environ == {}


@pytest.mark.parametrize("environ", [{}, {"MILL_AGENTS_VENV": "/nowhere"}])
def test_models_without_an_environment_are_one_line(environ: dict[str, str]) -> None:
    with (
        pytest.raises(ModelSettingsError, match="MILL_AGENTS_VENV"),
        opened((ModelSettings("openai/a"),), print, environ),
    ):
        pass


class TestComposed:
    """Over a real provider process and a real server."""

    @pytest.fixture
    def told(self) -> list[str]:
        return []

    def models(self, client: ProviderClient, told: list[str], *settings: ModelSettings) -> tuple[ChatModel, ...]:
        return composed(settings, client, told.append)

    def test_the_second_model_answers_where_the_first_cannot(self, client: ProviderClient, told: list[str]) -> None:
        def say(request):
            return Behaviour("from b") if request["model"] == "b" else Behaviour(status=429, retry_after_s=60)

        with OpenAIServer(say) as server:
            first = ModelSettings("openai/a", api_base=server.url, fallbacks=("openai/b",))
            second = ModelSettings("openai/b", api_base=server.url)
            model, _ = self.models(client, told, first, second)
            answers = [model.complete(REQUEST) for _ in range(2)]
        assert [(answer.text, answer.model) for answer in answers] == [("from b", "openai/b")] * 2
        assert [request["model"] for request in server.requests] == ["a", "b", "b"]
        assert model.name == "openai/a"

    def test_an_unknown_price_is_told_and_a_configured_one_is_paid(
        self, client: ProviderClient, told: list[str]
    ) -> None:
        with OpenAIServer(Behaviour("x" * 400)) as server:
            free = ModelSettings("openai/a", api_base=server.url)
            paid = ModelSettings("openai/b", 60, None, None, 10.0, 100.0, api_base=server.url)
            models = self.models(client, told, free, paid)
            answers = [model.complete(REQUEST) for model in models]
        assert len(told) == 1 and "openai/a" in told[0]
        assert answers[0].usage.usd == 0
        usage = answers[1].usage
        assert usage.usd == pytest.approx(usage.input_tokens * 10e-6 + usage.output_tokens * 100e-6)
        assert 0 < usage.usd <= models[1].most(REQUEST).usd

    def test_where_money_is_capped_a_model_needs_a_price(self, client: ProviderClient, told: list[str]) -> None:
        with pytest.raises(ModelSettingsError, match=r"openai/a\b.*usd_per_million_input_tokens"):
            composed((ModelSettings("openai/a"),), client, told.append, money_capped=True)
        free = ModelSettings("openai/a", usd_per_million_input_tokens=0.0, usd_per_million_output_tokens=0.0)
        assert composed((free,), client, told.append, money_capped=True)
        assert not told

    def test_a_models_own_limit_and_temperature_are_sent(self, client: ProviderClient, told: list[str]) -> None:
        with OpenAIServer(Behaviour("a")) as server:
            one = ModelSettings("openai/a", max_output_tokens=77, temperature=0.25, api_base=server.url)
            (model,) = self.models(client, told, one)
            model.complete(REQUEST)
        (request,) = server.requests
        assert (request["max_tokens"], request["temperature"]) == (77, 0.25)
        assert model.most(REQUEST).output_tokens == 77


def test_opened_starts_a_process_of_its_own(agents_python: Path) -> None:
    environ = {"MILL_AGENTS_VENV": str(agents_python.parents[1]), "LOCAL_API_KEY": "sk-of-the-local-server"}
    with OpenAIServer(Behaviour("hello")) as server:
        one = ModelSettings("openai/a", api_base=server.url, key_variable="LOCAL_API_KEY")
        with opened((one,), lambda line: None, environ) as (model,):
            assert model.complete(REQUEST).text == "hello"
    assert "LOCAL_API_KEY" not in environ
    assert server.headers[0]["authorization"] == "bearer sk-of-the-local-server"


def test_the_environment_variables_are_the_doors() -> None:
    from cli import environment

    assert environment.MODELS_VARIABLES == (configuration.MODELS_VARIABLE, configuration.FILE_VARIABLE)
    assert environment.AGENTS_VARIABLE == configuration.ENVIRONMENT_VARIABLE
