"""Provider keys for a process that no descriptor reaches: a scheduler in between closes what its children inherit.

`./mill ui` holds the keys for as long as it runs, and tells where in the environment. What a worker starts for a
scheduled search takes them from there. Only processes of the same user can.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping

from agents.models import keys

VARIABLE = "MILL_KEYS_HELD_AT"
PLACE = re.compile(r"/proc/\d+/fd/\d+", re.ASCII)


def offer(environ: MutableMapping[str, str]) -> keys.Keys:
    """Moves the keys out of an environment and tells in it that this process holds them, until it ends."""
    held = keys.taken_from(environ)
    environ[VARIABLE] = f"/proc/{os.getpid()}/fd/{held.descriptor}"
    return held


def accept(environ: MutableMapping[str, str]) -> None:
    """Makes what another process offers something that this one inherited; see `keys.taken_from`.

    Nothing if nobody offers, or if who did has ended.
    """
    place = environ.pop(VARIABLE, "")
    if not PLACE.fullmatch(place):
        return
    try:
        descriptor = os.open(place, os.O_RDONLY)
    except OSError:
        return
    environ[keys.DESCRIPTOR_VARIABLE] = str(descriptor)
