"""One host of `benchmarks.large_index`, in an interpreter of its own: it polls a channel and measures itself.

Imports nothing of ours before its memory was read. Prints one line of JSON after the first polls, and makes one more
poll, of which it prints the milliseconds, when it is told to by a line on standard input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main(folder: Path, url: str, channel: list[str], polls: int, tables: list[str]) -> None:
    """`folder` holds the registry's `root.json`; `channel` is fleet, model, hardware, name."""
    bare_bytes = memory_bytes("VmRSS")
    began = time.monotonic()
    from gristmill.pull import Puller
    from gristmill.store import open_store

    imported_s, imports_bytes = time.monotonic() - began, memory_bytes("VmRSS") - bare_bytes
    store, root = open_store(url, os.environ), (folder / "root.json").read_bytes()
    fleet, model, hardware, name = channel
    puller = Puller(store, root, fleet, model, hardware, name, folder / f"cache-{os.getpid()}", lambda: tables)

    def poll_ms() -> float:
        began = time.monotonic()
        puller.poll()
        return 1e3 * (time.monotonic() - began)

    cold_s = poll_ms() / 1e3
    seen = {
        "imported_s": imported_s,
        "cold_s": cold_s,
        "warm_ms": [poll_ms() for _ in range(polls)],
        "added_bytes": memory_bytes("VmHWM") - bare_bytes,
        "imports_bytes": imports_bytes,
        "tables": len(generation.tables) if (generation := puller.last_good()) else 0,
    }
    print(json.dumps(seen), flush=True)
    sys.stdin.readline()
    print(poll_ms(), flush=True)


def memory_bytes(kind: str) -> int:
    """`VmRSS`, what is resident now, or `VmHWM`, the most that ever was."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{kind}:"))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:7], int(sys.argv[7]), sys.argv[8:])
