"""A hook: where an engine's code meets dispatch and sampling. Every adapter calls operators through these."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, is_grad_enabled
from torch.compiler import is_dynamo_compiling

from gristmill import graph_operators

if TYPE_CHECKING:
    from gristmill.dispatch import Dispatcher
    from gristmill.lane import Lane
    from gristmill.sampler import Sampler
    from gristmill.site import Site

Tensors = tuple[Tensor, ...]


class Instruments:
    """What all hooks of one engine share. `sampler` may be exchanged at any time; None counts nothing."""

    def __init__(self, dispatcher: Dispatcher, sampler: Sampler | None) -> None:
        self.dispatcher = dispatcher
        self.sampler = sampler


class Hook:
    """One operator as one module calls it: samples the call and lets a kernel or the engine serve it.

    `engine` runs the module's own code, `allocate` makes dense outputs; both take the call's inputs and give a tuple in
    the contract's order that shares no memory with them. By default they are the site's.
    """

    __slots__ = (
        *("__weakref__", "_dispatcher", "_index", "_instruments", "_operator", "_row_elements"),
        *("allocate", "engine", "number", "site"),
    )

    def __init__(
        self,
        instruments: Instruments,
        site: Site,
        allocate: Callable[..., Tensors] | None = None,
        engine: Callable[..., Tensors] | None = None,
    ) -> None:
        self.site = site
        self.allocate = allocate or site.allocate
        self.engine = engine or site.run_engine
        self._instruments = instruments
        self._dispatcher = instruments.dispatcher
        self._index = site.index
        self._row_elements = site.row_elements
        self._operator = graph_operators.of(site.operator)
        self.number = graph_operators.enlist(self)
        """By which a compiled graph names this hook."""

    def call(self, *inputs: Tensor) -> Tensors:
        """The outputs, from a kernel or from `engine`. In a graph that is being compiled the call stays a call."""
        if is_dynamo_compiling():
            return self._in_graph(inputs)
        view = self._dispatcher.active[self._index]
        sampler = self._instruments.sampler
        try:
            lane = view.local.lanes[inputs[0].numel() // self._row_elements]
        except KeyError:
            lane = view.lane(inputs, sampler)
        if lane.sampler is not sampler:
            lane = view.lane(inputs, sampler)
        if lane.source.tracer is not None:
            return self._traced(lane, inputs)
        return lane.call(self, inputs)

    def redirect(self, inputs: Tensors) -> Tensors:
        """As `call`, by a lane that is looked up by every stride."""
        return self._dispatcher.active[self._index].lane(inputs, self._instruments.sampler).call(self, inputs)

    def _traced(self, lane: Lane, inputs: Tensors) -> Tensors:
        tracer = lane.source.tracer
        outputs = lane.call(self, inputs)
        if tracer is not None:
            tracer.note(self.site, inputs, outputs)
        return outputs

    def _in_graph(self, inputs: Tensors) -> Tensors:
        """Training stays with the engine, whose code has gradients."""
        if is_grad_enabled():
            return self.engine(*inputs)
        outputs = self._operator(*inputs, self.number)
        return outputs if isinstance(outputs, tuple) else (outputs,)
