"""Ctrl-C that cannot get lost.

A KeyboardInterrupt vanishes where it happens to be raised inside code that swallows every exception (C code that asks
whether an object has an attribute), or where an event loop has taken the signal over. So the signal is remembered, and
long work that reports its progress is interrupted there, if it still goes on.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

_pending = threading.Event()


def install() -> None:
    """Takes SIGINT over from Python's own handler; where it is ignored (a background job), it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def check() -> None:
    """Raises a KeyboardInterrupt that was lost; in other threads than the main one, nothing."""
    if _pending.is_set() and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt


def acknowledge() -> None:
    """The interrupt has arrived and is being dealt with: what is reported from now on is the clean-up."""
    _pending.clear()


def _interrupt(number: int, frame: FrameType | None) -> None:
    _pending.set()
    raise KeyboardInterrupt
