"""`python -m agents.provider CONTROL KEYS`: two descriptors, of the socket to the search and of the keys."""

from __future__ import annotations

import signal
import sys

from agents.models.keys import Keys
from agents.provider import process


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control, keys = map(int, sys.argv[1:])
    process.run(control, Keys(keys).values())


if __name__ == "__main__":
    main()
