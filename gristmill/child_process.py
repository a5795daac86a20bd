"""Children that do not outlive us: for servers that a command starts for its own lifetime."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent(sent: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """A `preexec_fn` after which the kernel signals the child when the thread that started it ends, however it ends.

    It runs between fork and exec: everything it needs is looked up beforehand, and it takes no lock.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def hook() -> None:
        prctl(_PR_SET_PDEATHSIG, sent)
        if os.getppid() != parent:
            os._exit(1)

    return hook
