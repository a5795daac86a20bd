"""The process dies, hangs, does not start, or is left behind. litellm is a stub here: no import of it, no provider."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agents.errors import AnswerLostError, ModelError, ModelUnavailableError, RequestRefusedError
from agents.models import provider_client
from agents.models.keys import Keys, taken_from
from agents.models.provider_client import MAX_DEATHS, ProviderClient
from agents.models.provider_model import ProviderModel
from agents.provider.wire import Order, Route
from tests.agents.models.conftest import CHECKOUT, KEY
from tests.agents.models.model_contract import REQUEST

STUB = """
import asyncio, os, sys
class Timeout(Exception): pass
model_cost = {"m": {"input_cost_per_token": 1.0, "output_cost_per_token": 2.0, "litellm_provider": "p"}}
def supports_reasoning(model): return False
async def acompletion(model, **arguments):
    if model == "die":
        os._exit(7)
    if model == "environment":
        raise Exception(repr(sorted(os.environ)))
    if model == "hang":
        while True: pass
    await asyncio.sleep(3600)
"""


def wait_until(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def alive(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def stub_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This interpreter, with the stub as its litellm."""
    folder = tmp_path_factory.mktemp("stub")
    (folder / "litellm.py").write_text(STUB)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


@pytest.fixture
def client(stub_python: Path, keys: Keys) -> Iterator[ProviderClient]:
    with ProviderClient(stub_python, keys) as client:
        yield client


def model(client: ProviderClient, name: str = "m") -> ProviderModel:
    return ProviderModel(client, Route(name))


def test_calls_in_flight_end_when_the_process_is_killed_and_the_next_ones_find_another(client: ProviderClient) -> None:
    slow = model(client)
    first = client.process_id
    assert first is not None
    with ThreadPoolExecutor(16) as pool:
        calls = [pool.submit(slow.complete, REQUEST) for _ in range(16)]
        wait_until(lambda: len(client._link.waiting) == 16)
        os.kill(first, signal.SIGKILL)
        for call in calls:
            with pytest.raises(AnswerLostError, match="ended while it worked") as caught:
                call.result(60)
            assert caught.value.usage == slow.most(REQUEST), "the provider may have charged for all of it"
    assert model(client).price_known
    assert client.process_id not in (None, first)


def test_deaths_in_a_row_are_bounded(client: ProviderClient) -> None:
    died = model(client)
    deadly = ProviderModel(client, Route("die"))
    for _ in range(2 * MAX_DEATHS):
        with pytest.raises(ModelError):
            deadly.complete(REQUEST)
    with pytest.raises(RequestRefusedError, match=f"died {MAX_DEATHS} times in a row; the last time it exited with 7"):
        died.complete(REQUEST)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("exit 3", "died 5 times in a row; the last time it exited with 3"),
        ("kill -9 $$", "it was killed"),
        (None, "No such file"),
    ],
)
def test_a_process_that_does_not_start_is_one_line(tmp_path: Path, keys: Keys, script: str | None, told: str) -> None:
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    with ProviderClient(python, keys) as client, pytest.raises(RequestRefusedError, match=told) as caught:
        model(client)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(importlib.util.find_spec("litellm") is not None, reason="litellm is in this environment too")
def test_an_environment_without_litellm_is_one_line(keys: Keys) -> None:
    with ProviderClient(Path(sys.executable), keys) as client, pytest.raises(RequestRefusedError, match="No module"):
        model(client)


def test_closing_ends_the_process_and_what_is_in_flight(stub_python: Path, keys: Keys) -> None:
    client = ProviderClient(stub_python, keys)
    slow = model(client)
    process_id = client.process_id
    assert process_id is not None
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(slow.complete, REQUEST)
        wait_until(lambda: bool(client._link and client._link.waiting))
        client.close()
        with pytest.raises(ModelUnavailableError):
            call.result(60)
    assert not alive(process_id)
    with pytest.raises(RequestRefusedError, match="was ended"):
        slow.complete(REQUEST)


def test_a_process_that_says_nothing_any_more_is_replaced(
    client: ProviderClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_client, "GRACE_S", 0.2)
    monkeypatch.setattr(provider_client, "SILENCE_S", 0.1)
    first = client.process_id
    hanging = model(client, "hang")
    with pytest.raises(ModelUnavailableError, match="did not answer"):
        client.ask(Order(0, call=hanging._call(REQUEST)), 0.2)
    wait_until(lambda: client.process_id not in (None, first))


def test_a_request_that_is_too_large_is_refused_and_nothing_breaks(
    client: ProviderClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = model(client)
    monkeypatch.setattr(provider_client, "MAX_FRAME_BYTES", 1000)
    with pytest.raises(RequestRefusedError, match="too large"):
        one.complete(REQUEST.__class__((REQUEST.messages[0].__class__(REQUEST.messages[0].role, "x" * 2000),)))
    assert model(client).price_known


def test_the_process_gets_the_keys_and_little_else(stub_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent's other secrets stay where they are; its own keys are not even in what it was started with."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the store")
    with ProviderClient(stub_python, taken_from(os.environ)) as client:
        assert "OPENAI_API_KEY" not in os.environ
        with pytest.raises(ModelUnavailableError) as caught:
            model(client, "environment").complete(REQUEST)
        assert "OPENAI_API_KEY" in str(caught.value) and "AWS_SECRET" not in str(caught.value)
        started_with = Path(f"/proc/{client.process_id}/environ").read_text()
        assert "PYTHONPATH" in started_with and KEY not in started_with


ORPHAN = """
import os, sys, time
from pathlib import Path
from agents.models.keys import taken_from
from agents.models.provider_client import ProviderClient
from agents.models.provider_model import ProviderModel
from agents.provider.wire import Route
from tests.agents.models.model_contract import REQUEST
with ProviderClient(Path(sys.argv[1]), taken_from(os.environ)) as client:
    model = ProviderModel(client, Route("m"))
    print(client.process_id, flush=True)
    model.complete(REQUEST)
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, -signal.SIGINT)])
def test_nothing_is_left_behind_by_a_search_that_is_killed_or_interrupted(
    stub_python: Path, sent: signal.Signals, code: int
) -> None:
    search = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(stub_python)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert search.stdout is not None
        process_id = int(search.stdout.readline())
        assert alive(process_id)
        time.sleep(0.1)
        search.send_signal(sent)
        assert search.wait(60) == code
        wait_until(lambda: not alive(process_id))
    finally:
        search.kill()
        search.wait()
        search.stdout.close()
