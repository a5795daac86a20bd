"""What an engine's plugin asks before it touches anything: is it wanted, is this a release it knows, built alike?"""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gristmill import __version__
from gristmill.errors import EngineError, GristmillError
from gristmill.membership import VARIABLE


def load(register: Callable[[], None], logger: logging.Logger) -> None:
    """Registers where a membership was handed down. Whatever goes wrong, the engine starts, and its log says why."""
    if not os.environ.get(VARIABLE):
        return
    try:
        register()
    except GristmillError as error:
        logger.warning("%s; it serves with its own kernels", error)
    except Exception:
        logger.exception("a bug of gristmill's; the engine serves with its own kernels")


def check_release(engine: str, version: str, known: Sequence[tuple[int, ...]]) -> None:
    """Whether a version begins with one of these.

    Raises:
        EngineError: it does not.
    """
    found = re.match(r"\d+\.\d+\.\d+", version)
    numbers = tuple(int(part) for part in found[0].split(".")) if found else ()
    if all(numbers[: len(one)] != one for one in known):
        names = ", ".join(".".join(map(str, one)) for one in known)
        raise EngineError(f"{engine} {version[:40]}: gristmill {__version__} knows {names}; install one of these")


def check_structure(engine: str, found: Callable[[], Mapping[str, bool]]) -> None:
    """Looks at all that is relied on, so that a build that differs is refused before anything is changed.

    Args:
        engine: its name and version.
        found: imports it, and says of each part by its name whether it is as the adapter knows it.

    Raises:
        EngineError: it differs.
    """
    try:
        differ = [name for name, same in found().items() if not same]
    except (ImportError, AttributeError) as error:
        raise EngineError(f"{engine}: is built differently from what the adapter knows ({error})") from None
    if differ:
        raise EngineError(f"{engine}: {', '.join(differ)} differ from what the adapter knows")


def parameters(function: Any) -> list[str]:
    """The names of what it takes."""
    return list(inspect.signature(function).parameters)
