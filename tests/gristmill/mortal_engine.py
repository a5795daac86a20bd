"""An engine process that kernels may take down: `python mortal_engine.py TRIALS GENERATION`, a folder and a pickle.

Serves two steps of calls with 4 and with 8 tokens, and prints what became of them as JSON.
"""

from __future__ import annotations

import faulthandler
import json
import pickle
import sys
from pathlib import Path

import torch

from gristmill.dispatch import Dispatcher
from gristmill.hook import Hook, Instruments
from gristmill.trials import Trials

HIDDEN = 32


def norm(x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float = 1e-5) -> tuple[torch.Tensor, ...]:
    return (torch.nn.functional.rms_norm(x_TH, (HIDDEN,), weight_H, eps),)


@torch.no_grad()
def main(folder: str, pickled: str) -> None:
    faulthandler.disable()
    dispatcher = Dispatcher("stable", "test-hardware", environ={})
    dispatcher.trials = Trials(Path(folder))
    weight_H = torch.rand(HIDDEN) + 0.5
    site = dispatcher.site("rms_norm", torch.float32, {"hidden": HIDDEN}, (1e-5,), norm)
    site.add_weight(weight_H)
    hook = Hook(Instruments(dispatcher, None), site, engine=norm)
    refusals = dispatcher.stage(pickle.loads(Path(pickled).read_bytes()))
    dispatcher.step_boundary()
    for _ in range(2):
        for tokens in (4, 8):
            x_TH = torch.randn(tokens, HIDDEN)
            torch.testing.assert_close(hook.call(x_TH, weight_H), norm(x_TH, weight_H))
        dispatcher.step_boundary()
    notes = [path.name for path in Path(folder).iterdir()]
    print(
        json.dumps(
            {
                "hits": dispatcher.hits(),
                "refusals": {one.candidate: one.reason for one in refusals},
                "warnings": dispatcher.trials.take_warnings(),
                "notes": notes,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
