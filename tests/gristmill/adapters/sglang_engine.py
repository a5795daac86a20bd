"""A real SGLang engine on dummy weights, driven by words on its input: `run`, `status`, `flush`, and the end of it.

It runs in the engine's environment, as a process of its own; the engine spawns others, which load the plugin.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

PROMPTS = [[5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15, 16]]
TOKENS = 6
ANSWER = "ANSWER "


def main(model: str, dtype: str) -> None:
    import sglang

    engine = sglang.Engine(
        model_path=model,
        dtype=dtype,
        device="cpu",
        load_format="dummy",
        skip_tokenizer_init=True,
        attention_backend="torch_native",
        sampling_backend="pytorch",
        disable_cuda_graph=True,
        max_total_tokens=2048,
        mem_fraction_static=0.2,
        random_seed=1,
        log_level="info",
    )
    say({"front": os.getpid()})
    for line in sys.stdin:
        say(answer(engine, line.strip()))
    engine.shutdown()


def answer(engine: Any, word: str) -> Any:
    if word == "run":
        greedy = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        return [one["output_ids"] for one in engine.generate(input_ids=PROMPTS, sampling_params=greedy)]
    if word == "status":
        return engine.get_server_info()["internal_states"][0].get("gristmill")
    return engine.collective_rpc(f"gristmill_{word}")


def say(what: Any) -> None:
    print(f"{ANSWER}{json.dumps(what)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
