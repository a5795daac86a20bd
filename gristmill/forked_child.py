"""Forked children: what they do not take over from their parent, although they have a copy of all its memory.

A child has one thread. Locks that others held stay held in it, connections are its parent's as well, and what it would
say under its parent's name its parent has not said. Whatever has such a thing lets go of it here, before the child
runs on. Children that are spawned, or that `exec` a program, have no copy and are none of this.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import weakref
from typing import Any, Protocol


class Heir(Protocol):
    """Something that a child has a copy of."""

    def forked(self) -> None:
        """Called in the child, on its only thread; locks may be held by nobody. It must not wait for anything."""
        ...


_heirs: weakref.WeakSet[Heir] = weakref.WeakSet()


def tell(heir: Heir) -> None:
    """Calls `forked` in every child that this process forks from now on, as long as there is such an object."""
    _heirs.add(heir)


def closes(descriptors: set[int] | dict[int, Any]) -> None:
    """In every child, closes what these are at that moment, and forgets them: a child that outlives its parent does not
    go on holding what its parent has locked. To be called once, with what lives as long as the process.
    """

    def close() -> None:
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        descriptors.clear()

    os.register_at_fork(after_in_child=close)


def _tell_all() -> None:
    for heir in [*_heirs]:
        try:
            heir.forked()
        except Exception:  # a bug; the others are told all the same
            traceback.print_exc(file=sys.stderr)


os.register_at_fork(after_in_child=_tell_all)
