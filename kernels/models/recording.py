"""One real forward pass, written down: every ATen operation with its arguments, and the module that asked for it.

Values are kept, so that an operation can be recognised by what it computes and not by what it is called. That is for
small models: a recording holds every intermediate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Value:
    """A tensor of the recording, by number; another one after each write to it."""

    number: int


@dataclass(frozen=True)
class Operation:
    """One ATen call."""

    function: Any
    """The overload, e.g. `aten.mul.Tensor`."""
    arguments: tuple[Any, ...]
    """With `Value` in place of tensors."""
    keywords: Mapping[str, Any]
    results: tuple[Value, ...]
    module: str
    """Path of the innermost module, e.g. `model.layers.0.mlp`; empty outside of all."""
    kind: str
    """Class of that module."""

    @property
    def name(self) -> str:
        """Without the overload: `mul`."""
        return str(self.function.overloadpacket.__name__)

    @property
    def operands(self) -> tuple[Value, ...]:
        leaves = pytree.tree_leaves((self.arguments, dict(self.keywords)))
        return tuple(leaf for leaf in leaves if isinstance(leaf, Value))


@dataclass
class Recording:
    """What one forward pass did."""

    operations: list[Operation] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    """By number of their value."""
    weights: dict[int, str] = field(default_factory=dict)
    """Numbers of parameters and buffers, and their names."""
    overwritten: set[int] = field(default_factory=set)
    """Numbers of values that are gone: their memory was written to afterwards."""

    def tensor(self, value: Value) -> Tensor:
        return self.tensors[value.number]


def record(call: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> Recording:
    """Runs `call`, a module or what calls one, once without gradients, and writes down what it did."""
    recorder = _Recorder(call if isinstance(call, nn.Module) else None)
    with torch.no_grad(), _modules_told(recorder), recorder:
        call(*arguments, **(keywords or {}))
    return recorder.recording


def record_program(program: Any) -> Recording:
    """The same of a `torch.export.ExportedProgram`, on the inputs that it was exported with."""
    graph_module = program.module()
    recorder = _Recorder(graph_module)
    arguments, keywords = program.example_inputs
    flat, _ = pytree.tree_flatten((tuple(arguments), dict(keywords)))
    with torch.no_grad(), recorder:
        _Interpreter(graph_module, recorder).run(*flat)
    return recorder.recording


class _Interpreter(torch.fx.Interpreter):
    """Runs a graph node by node, and tells the recorder which module each came from."""

    def __init__(self, module: Any, recorder: _Recorder) -> None:
        super().__init__(module)
        self._recorder = recorder

    def run_node(self, n: torch.fx.Node) -> Any:
        stack = n.meta.get("nn_module_stack") or {}
        self._recorder.entered = [(path, str(kind).rpartition(".")[2].strip("'>")) for path, kind in stack.values()]
        return super().run_node(n)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, root: nn.Module | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording()
        self.entered: list[tuple[str, str]] = []
        """Path and class of the modules that the pass is in, the innermost last."""
        self.names = {} if root is None else {module: name for name, module in root.named_modules()}
        self._numbers: dict[int, int] = {}
        self._named: dict[int, str] = {}
        if root is not None:
            tensors = [*root.named_parameters(), *root.named_buffers()]
            self._named = {id(tensor): name for name, tensor in tensors}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        arguments, keywords = pytree.tree_map_only(Tensor, self._value, (args, dict(kwargs or {})))
        result = func(*args, **(kwargs or {}))
        if func._schema.is_mutable:
            self._overwrite(func, args, kwargs or {})
        results = tuple(self._value(leaf) for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor))
        path, kind = self.entered[-1] if self.entered else ("", "")
        self.recording.operations.append(Operation(func, arguments, keywords, results, path, kind))
        return result

    def _value(self, tensor: Tensor) -> Value:
        """Tensors are kept alive, so that no other gets their identity."""
        number = self._numbers.get(id(tensor))
        if number is None:
            number = self._numbers[id(tensor)] = len(self.recording.tensors)
            self.recording.tensors.append(tensor)
            if id(tensor) in self._named:
                self.recording.weights[number] = self._named[id(tensor)]
        return Value(number)

    def _overwrite(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """All that shares the memory is another value from here on."""
        for position, argument in enumerate(func._schema.arguments):
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            if argument.alias_info is None or not argument.alias_info.is_write or not isinstance(given, Tensor):
                continue
            memory = given.untyped_storage()._cdata
            for identity, number in list(self._numbers.items()):
                if self.recording.tensors[number].untyped_storage()._cdata == memory:
                    self.recording.overwritten.add(number)
                    del self._numbers[identity]


@contextmanager
def _modules_told(recorder: _Recorder) -> Iterator[None]:
    """Every module of the process tells the recorder when it is entered and left."""

    def enter(module: nn.Module, _: Any) -> None:
        recorder.entered.append((recorder.names.get(module, ""), type(module).__name__))

    def leave(module: nn.Module, _: Any, __: Any) -> None:
        recorder.entered.pop()

    before = nn.modules.module.register_module_forward_pre_hook(enter)
    after = nn.modules.module.register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()
