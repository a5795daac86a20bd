"""A hook: where an engine's code meets dispatch and sampling. Every adapter calls operators through these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, is_grad_enabled
from torch.compiler import is_dynamo_compiling

from gristmill import graph_operators
from gristmill.lane import Tensors, all_dense
from gristmill.native import PACKED_WORD, TENSOR_WORDS

if TYPE_CHECKING:
    from gristmill.lane import Kernel, Lane, View
    from gristmill.sampler import Sampler
    from gristmill.site import Site


class Serving(Protocol):
    """What a hook needs of a dispatcher."""

    @property
    def active(self) -> Sequence[View] | Mapping[int, View]:
        """By the sites' index."""
        ...


class Instruments:
    """What all hooks of one engine share. `sampler` may be exchanged at any time; None counts nothing."""

    def __init__(self, serving: Serving, sampler: Sampler | None) -> None:
        self.serving = serving
        self.sampler = sampler


class Hook:
    """One operator as one module calls it: samples the call and lets a kernel or the engine serve it.

    Callers see to it that the rows of the first input are the site's, as a module's own weights do: on a hit that would
    take 250 ns to find out. How large the others are is looked at.

    `engine` runs the module's own code, `allocate` makes dense outputs; both take the call's inputs and give a tuple in
    the contract's order that shares no memory with them. By default they are the site's.
    """

    __slots__ = (
        *("__weakref__", "_index", "_instruments", "_operator", "_serving", "_weight", "_weight_position"),
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
        self._serving = instruments.serving
        self._index = site.index
        self._weight: tuple[Tensor | None, int] = None, 0
        """The last one that was found to be dense and of the site's type, and its address then."""
        self._weight_position = site.contract.weight_index * TENSOR_WORDS
        self._operator = graph_operators.of(site.operator)
        self.number = graph_operators.enlist(self)
        """By which a compiled graph names this hook."""

    def call(self, *inputs: Tensor, lane: Lane | None = None) -> Tensors:
        """The outputs, from a kernel or from `engine`. In a graph that is being compiled the call stays a call.

        Every nanosecond here is paid by every call, so it is one piece; what happens seldom is elsewhere. `lane` is
        for those who come back from there.
        """
        if lane is None:
            if is_dynamo_compiling():
                return self._in_graph(inputs)
            try:
                lane = self._serving.active[self._index].local.lanes[inputs[0].numel()]
            except KeyError:
                return self._observed(inputs)
            if lane.sampler is not self._instruments.sampler or lane.source.tracer is not None:
                return self._observed(inputs)
        cell = lane.cell
        calls = cell.calls
        if calls == cell.due:
            return self._timed(lane, inputs)
        kernel = lane.kernel
        if kernel is None or is_grad_enabled() or not kernel.state.enabled:
            return self._fall_back(lane, inputs)
        outputs = self.allocate(*inputs)
        frame, dtype, regular, elsewhere = kernel.frame, lane.dtype, lane.regular, kernel.elsewhere
        words, position = frame.words, 0
        elements, (weight, weight_address) = lane.elements, self._weight
        try:
            for tensor in inputs:
                words[position] = address = tensor.data_ptr()
                if tensor is not weight or address != weight_address:
                    if (
                        tensor.dtype is not dtype
                        or (not tensor.is_contiguous() if regular else tensor.is_neg())
                        or (position and tensor.numel() != elements[position])
                        or (elsewhere and not tensor.is_cpu)
                        or not address
                    ):
                        return self._fall_back(lane, inputs)
                    if regular and position == self._weight_position:
                        self._weight = tensor, address
                position += TENSOR_WORDS
            for tensor in outputs:
                words[position] = tensor.data_ptr()
                position += TENSOR_WORDS
        except RuntimeError:  # as a null address: a tensor without memory, as tracers and compilers pass them
            return self._fall_back(lane, inputs)
        try:
            index = kernel.weight_index
            if index >= 0:
                weight = inputs[index]
                form = kernel.forms.get(id(weight))
                if form is None or form.version != weight._version or form.address != words[index * TENSOR_WORDS]:
                    form = kernel.route.packed(weight)
                    if form is None:
                        return self._fall_back(lane, inputs)
                frame.call_words[PACKED_WORD] = form.packed_address
            code = frame.function(frame.address)
        except Exception as error:  # whatever went wrong in a kernel, serving goes on with the engine's own
            return self._failed(f"{type(error).__name__}: {error}", kernel, lane, inputs)
        if code:
            return self._failed(f"gm_run returned {code}", kernel, lane, inputs)
        cell.calls = calls + 1
        frame.hits = hits = frame.hits + 1
        if hits == frame.next_shadow and not kernel.route.agrees(frame, inputs, outputs):
            self.site.fallbacks += 1
            return self.engine(*inputs)
        return outputs

    def _observed(self, inputs: Tensors) -> Tensors:
        """The first call of its kind, or one in a step that is traced."""
        lane = self._serving.active[self._index].lane(inputs, self._instruments.sampler)
        tracer = lane.source.tracer
        if tracer is None:
            return self.call(*inputs, lane=lane)
        began_ns = perf_counter_ns()
        outputs = self.call(*inputs, lane=lane)
        tracer.note(self.site, inputs, outputs, began_ns, perf_counter_ns())
        return outputs

    def _timed(self, lane: Lane, inputs: Tensors) -> Tensors:
        cell, source = lane.cell, lane.source
        if not cell.plain:
            return source.timed(cell, self.site, inputs, lambda: self.call(*inputs, lane=lane))
        calls, due, period = cell.calls, cell.due, source.period  # as `Sampler.timed`, in one piece
        cell.due = (due // period + 1) * period + int(source.draw() * period)
        start_ns = perf_counter_ns()
        outputs = self.call(*inputs, lane=lane)
        elapsed_ns = perf_counter_ns() - start_ns
        if cell.calls > calls:
            cell.timed_ns += elapsed_ns
            cell.timed_calls += 1
        else:
            cell.due = due
        return outputs

    def _fall_back(self, lane: Lane, inputs: Tensors) -> Tensors:
        """The engine serves; unless the call only looked like one of its lane's kind."""
        if lane.regular and not all_dense(inputs):
            return self._redirect(inputs)
        lane.cell.calls += 1
        self.site.fallbacks += lane.covered
        return self.engine(*inputs)

    def _redirect(self, inputs: Tensors) -> Tensors:
        lane = self._serving.active[self._index].lane(inputs, self._instruments.sampler)
        return self.call(*inputs, lane=lane)

    def _failed(self, reason: str, kernel: Kernel, lane: Lane, inputs: Tensors) -> Tensors:
        kernel.route.fail(reason)
        return self._fall_back(lane, inputs)

    def _in_graph(self, inputs: Tensors) -> Tensors:
        """Training stays with the engine, whose code has gradients."""
        if is_grad_enabled():
            return self.engine(*inputs)
        outputs = self._operator(*inputs, self.number)
        return outputs if isinstance(outputs, tuple) else (outputs,)
