"""Children that tests fork off, which tell what they found."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 120


def in_child(work: Callable[[], T]) -> T:
    """What `work` returns in a forked child, which then ends without a trace of the test runner's. It must not hang,
    and an exception fails the test.
    """
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE_S)  # a deadlock ends it
        code = 1
        try:
            os.write(sending, pickle.dumps(work()))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(sending)
    with os.fdopen(receiving, "rb") as answers:
        answer = answers.read()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    found: T = pickle.loads(answer)
    return found
