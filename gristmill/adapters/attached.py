"""What every adapter gives back once it has attached a model: the seam between an engine and a member."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gristmill.dispatch import Dispatcher
    from gristmill.sampler import Sampler


class Attached(Protocol):
    """A model whose operators ask the dispatcher. Without tables its outputs are bitwise the engine's own."""

    sampler: Sampler | None
    """May be exchanged at any time; None counts nothing."""

    @property
    def dispatcher(self) -> Dispatcher: ...

    def detach(self) -> None:
        """The model is as it was before; what was compiled in the meantime may be compiled again."""
        ...
