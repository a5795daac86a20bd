"""`python -m agents.provider CONTROL KEYS`: two descriptors, of the socket to the search and of the keys."""

from __future__ import annotations

import os
import signal
import sys

from agents.models.keys import Keys
from agents.provider import process

NICE = 5
"""Half a millisecond goes into every piece of a stream: where cores are few, the judge's work comes first."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICE)
    control, keys = map(int, sys.argv[1:])
    process.run(control, Keys(keys).values())


if __name__ == "__main__":
    main()
