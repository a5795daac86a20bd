"""What a Python candidate may need after a fork: OpenMP, threads of its own, numpy's library."""

from __future__ import annotations

import os
import threading
from typing import Any


def main(settings: dict[str, Any]) -> None:
    """Writes what came of it to the descriptor `answer`."""
    import numpy as np
    import torch

    torch.set_num_threads(2)
    total = int(torch.ones(1 << 22).sum())
    product = int((np.ones((64, 64), np.float32) @ np.ones((64, 64), np.float32)).sum())
    answers: list[int] = []
    threads = [threading.Thread(target=answers.append, args=(number,)) for number in (3, 1)]
    for thread in threads:
        thread.start()
        thread.join()
    text = f"{torch.get_num_threads()} threads, sum {total}, numpy {product}, child threads {answers}"
    os.write(settings["answer"], text.encode())
