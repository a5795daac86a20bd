"""`python -m gristmill.serving.vllm_engine`: vLLM as a serving process, with the flags and commands of the reference.

It runs in the engine's own environment. The process that answers is the engine's front; operators run in a worker that
the engine spawns, where the plugin `gristmill.adapters.vllm` attaches them because a membership is handed down.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gristmill import durable_file
from gristmill.adapters.vllm import check_version
from gristmill.errors import GristmillError, ServingError
from gristmill.membership import hand_down
from gristmill.serving.__main__ import parser as reference_parser
from gristmill.serving.model import ModelShape
from gristmill.serving.protocol import (
    Command,
    LineWriter,
    PairedCommand,
    ReplayCommand,
    answer,
    command_id,
    parse_command,
)
from gristmill.serving.request_replay import replay_requests
from gristmill.serving.settings import EngineSettings

IDLE_S = 0.2
LONGEST_SEQUENCE = 1024
LARGEST_BATCH = 32


class VllmEngine:
    """Obeys commands in order. Nothing else talks to the engine, so `status` waits for the replay before it."""

    def __init__(
        self,
        settings: EngineSettings,
        compiled: bool,
        custom_ops: Sequence[str],
        writer: LineWriter,
        closed: threading.Event,
    ) -> None:
        """`custom_ops` are of vLLM's compilation settings, beside its default."""
        self.closed = closed
        self.commands: queue.Queue[Command] = queue.Queue()
        self._settings = settings
        self._writer = writer
        self._llm = _engine(settings, compiled, custom_ops)

    def run(self) -> None:
        """Until closed; requests being served then are dropped."""
        self._writer.write("ready", **self._answer_of("status"))
        try:
            while not self.closed.is_set():
                try:
                    command = self.commands.get(timeout=IDLE_S)
                except queue.Empty:
                    continue
                answer(self._writer, command, self._result)
        finally:
            self._llm.llm_engine.engine_core.shutdown()

    def _result(self, command: Command) -> Any:
        if isinstance(command, ReplayCommand):
            return replay_requests(
                self._llm.llm_engine,
                command.requests,
                command.concurrency,
                command.seed,
                self._settings.shape.vocabulary,
                explained=command.detail,
                progress=lambda progress: self._writer.write("progress", id=command.id, **progress),
                stop=self.closed.is_set,
            )
        if isinstance(command, PairedCommand):
            raise ServingError("ab: vLLM can't take a step back; compare replays with kernels on and off instead")
        return self._answer_of(command.command)

    def _answer_of(self, command: str) -> dict[str, Any]:
        """Of the worker of rank 0, with all workers' answers beside it."""
        if command == "flush":
            if not self._settings.root_file:
                raise ServingError("flush: this process does not spool; start it with a store and a root")
            return {"workers": self._llm.collective_rpc("gristmill_flush")}
        if not self._settings.root_file:
            return {"front": os.getpid()}
        workers = self._llm.collective_rpc("gristmill_status")
        scheduler = self._llm.llm_engine.engine_core.call_utility("gristmill_scheduler")
        named = {"fleet": self._settings.fleet, "model": self._settings.model, "dtype": self._settings.dtype}
        return {**named, **workers[0], "workers": workers, "scheduler": scheduler, "front": os.getpid()}


def _engine(settings: EngineSettings, compiled: bool, custom_ops: Sequence[str]) -> Any:
    """vLLM's `LLM` on dummy weights, with the model's configuration written beside the cache."""
    folder = Path(settings.cache_dir) / "model"
    folder.mkdir(parents=True, exist_ok=True)
    durable_file.write(folder / "config.json", json.dumps(model_config(settings.shape, settings.dtype)).encode())
    import vllm

    check_version(str(vllm.__version__))
    return vllm.LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype=settings.dtype,
        seed=settings.seed,
        enforce_eager=not compiled,
        compilation_config={"custom_ops": ["none", *custom_ops]} if compiled else {},
        max_model_len=min(LONGEST_SEQUENCE, settings.shape.positions),
        max_num_seqs=LARGEST_BATCH,
        enable_prefix_caching=False,  # replays repeat their prompts, and both arms are to read them
        disable_log_stats=True,
    )


def model_config(shape: ModelShape, dtype: str) -> dict[str, Any]:
    """What Hugging Face keeps in `config.json`."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.query_heads,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.positions,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def read_commands(engine: VllmEngine, writer: LineWriter) -> None:
    """Queues commands until standard input closes or one says `quit`."""
    for line in sys.stdin:
        try:
            command = parse_command(line)
        except GristmillError as error:
            writer.write("error", id=command_id(line), message=str(error))
            continue
        if command.command == "quit":
            break
        engine.commands.put(command)
    engine.closed.set()


def main(arguments: list[str] | None = None) -> int:
    """As the reference engine's: until standard input closes; 2 with one line if it cannot start."""
    parser = reference_parser()
    parser.prog = "python -m gristmill.serving.vllm_engine"
    parser.add_argument("--compiled", action="store_true", help="let the engine compile the model")
    parser.add_argument(
        "--custom-ops", nargs="*", default=(), help="of a compiled model: layers that stay calls, +rms_norm"
    )
    flags = vars(parser.parse_args(arguments))
    compiled, custom_ops = flags.pop("compiled"), flags.pop("custom_ops")
    shape = ModelShape(**{one.name: flags.pop(one.name) for one in dataclasses.fields(ModelShape)})
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        writer = LineWriter(answers)
        try:
            settings = EngineSettings(shape=shape, **flags)
            settings.check(os.environ)
            _prepare_environment(settings)
            closed = threading.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: closed.set())
            engine = VllmEngine(settings, compiled, custom_ops, writer, closed)
        except GristmillError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        threading.Thread(target=read_commands, args=(engine, writer), name="commands", daemon=True).start()
        engine.run()
    return 0


def _prepare_environment(settings: EngineSettings) -> None:
    """For the processes that the engine spawns."""
    defaults = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if settings.root_file:
        membership = dataclasses.replace(settings.membership(), spool_s=settings.spool_s if settings.sampling else 0.0)
        hand_down(membership, os.environ)


if __name__ == "__main__":
    sys.exit(main())
