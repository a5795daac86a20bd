"""The untrusted runner of Python candidates: loads one and runs it on buffer sets that the judge prepared.

It is forked by `zygote.py`, imports nothing of Gristmill, holds no expected output and no clock that counts. Whatever
it says is taken as a claim: "done" stops the judge's clock, and then the judge looks at the buffers. Compiled
candidates have a runner of their own (`native/runner.c`) that speaks the same protocol (`native/protocol.h`). Baselines
are served by this loop too, in a process of their own.
"""

from __future__ import annotations

import array
import base64
import ctypes
import gc
import json
import mmap
import os
import socket
import struct
import sys
import tempfile

TYPE_CHECKING = False  # the module `typing` would cost every start a few milliseconds
if TYPE_CHECKING:
    from typing import Any

# pathlib too would cost every start a few milliseconds:
# ruff: noqa: PTH103, PTH118, PTH120, PTH123

HEADER = struct.Struct("<IIQ")
"""Kind, bytes of the payload, nonce."""
LOAD, PLAN, SETUP, RUN, QUIT, REVIEW = 1, 2, 3, 4, 5, 6
DONE, REFUSED, FAILED = 101, 102, 103
MAX_TEXT_BYTES = 2000
LOAD_HEAD = struct.Struct("<q")
"""Most bytes of packed weights; 0 without a setup phase."""
PLAN_HEAD = struct.Struct("<QQQIIIIIIII")
"""Input offset, input bytes, output bytes; inputs, outputs, scalars, sets, guarded sets, whether to map every page
now, whether linked, padding.
"""
PLAN_TENSOR = struct.Struct("<ii4q4qQQQQ")
"""Dtype, rank, shape, strides, base, start, pitch, whether a weight."""
RUN_HEAD = struct.Struct("<QII")
"""Seed of the chain, calls, sets in the pool."""

PAGE = mmap.PAGESIZE
PROT_NONE, PROT_READ, PROT_WRITE = 0, 1, 2
MAP_SHARED = 1
MADV_POPULATE_READ = 22
MAP_FAILED = ctypes.c_void_p(-1).value
SETTINGS_ROOM = 32
LEFT_CHANGED = "left {} changed: an engine shares it with its kernels, so restore it before you return"
MAX_RANK = 4
CHAIN_TENSORS = 8
DTYPE_CODES = {"float32": 1, "bfloat16": 2, "float64": 3, "int32": 4, "int64": 5}
DTYPE_NAMES = {code: name for name, code in DTYPE_CODES.items()}
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float64": 8, "int32": 4, "int64": 8}

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class RefusalError(Exception):
    """The candidate declined, or is not what it claims to be; the text says how."""


class ChainOutput(ctypes.Structure):
    _fields_ = (
        ("start", ctypes.c_void_p),
        ("pitch", ctypes.c_int64),
        ("elements", ctypes.c_int64),
        ("item_bytes", ctypes.c_int64),
    )


class ChainInput(ctypes.Structure):
    _fields_ = (
        ("start", ctypes.c_void_p),
        ("pitch", ctypes.c_int64),
        ("item_bytes", ctypes.c_int64),
        ("shape", ctypes.c_int64 * MAX_RANK),
        ("stride", ctypes.c_int64 * MAX_RANK),
        ("to", ctypes.c_void_p),
    )


class Chain(ctypes.Structure):
    """`chain` of `native/chain.h`: which set is called next, and with what."""

    _fields_ = (
        ("state", ctypes.c_uint64),
        ("pool", ctypes.c_void_p),
        ("remaining", ctypes.c_int64),
        ("last", ctypes.c_int64),
        ("linked", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("output", ChainOutput * CHAIN_TENSORS),
        ("input", ChainInput * CHAIN_TENSORS),
    )

    def restart(self, seed: int, pool: int, count: int) -> None:
        """Begins a run over that many set numbers at that address."""
        self.state, self.pool, self.remaining, self.last = seed, pool, count, -1

    def add_output(self, start: int, pitch: int, shape: Any, dtype: str) -> None:
        elements = 1
        for extent in shape:
            elements *= extent
        self.output[self.outputs] = ChainOutput(start, pitch, elements, ITEM_BYTES[dtype])
        self.outputs += 1

    def add_input(self, start: int, pitch: int, shape: Any, strides: Any, dtype: str, to: int) -> None:
        missing = MAX_RANK - len(shape)
        distinct = [extent if stride else 1 for extent, stride in zip(shape, strides, strict=True)]
        self.input[self.inputs] = ChainInput(
            start,
            pitch,
            ITEM_BYTES[dtype],
            (ctypes.c_int64 * MAX_RANK)(*[1] * missing, *distinct),
            (ctypes.c_int64 * MAX_RANK)(*[0] * missing, *strides),
            to,
        )
        self.inputs += 1


class Tensor:
    """One tensor of a plan, for all sets."""

    def __init__(self, fields: tuple[Any, ...]) -> None:
        code, rank = fields[:2]
        self.dtype: str = DTYPE_NAMES[code]
        self.shape: tuple[int, ...] = fields[2 : 2 + rank]
        self.strides: tuple[int, ...] = fields[2 + MAX_RANK : 2 + MAX_RANK + rank]
        self.base, self.start, self.pitch, self.weight = fields[2 + 2 * MAX_RANK :]
        reach = sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))
        self.span = (1 + reach) * ITEM_BYTES[self.dtype]
        """Bytes from the first element to the last."""


class Region:
    """A part of a shared file in this process."""

    def __init__(self, fd: int, offset: int, size: int, writable: bool, populate: bool) -> None:
        self.size = size
        self.address = 0
        if not size:
            return
        protection = PROT_READ | (PROT_WRITE if writable else 0)
        address = libc.mmap(None, size, protection, MAP_SHARED, fd, offset)
        if address == MAP_FAILED:
            self.size = 0
            raise MemoryError(f"cannot map {size} bytes")
        self.address = int(address)
        if populate:  # map now what a timed call would otherwise fault in
            libc.madvise(self.address, size, MADV_POPULATE_READ)

    def unmap(self) -> None:
        if self.size:
            libc.munmap(self.address, self.size)


class Plan:
    """One workload's buffer sets in this process."""

    def __init__(self, payload: bytes, inputs_fd: int, outputs_fd: int) -> None:
        fields = PLAN_HEAD.unpack_from(payload)
        offset, input_bytes, output_bytes, inputs, outputs, scalars, self.sets, guarded, populate, linked, _ = fields
        self.linked = bool(linked)
        self.guarded = bool(guarded)
        place = PLAN_HEAD.size
        tensors = [
            Tensor(PLAN_TENSOR.unpack_from(payload, place + i * PLAN_TENSOR.size)) for i in range(inputs + outputs)
        ]
        self.inputs = tensors[:inputs]
        self.outputs = tensors[inputs:]
        self.scalars = struct.unpack_from(f"<{scalars}d", payload, place + len(tensors) * PLAN_TENSOR.size)
        self._regions = [
            Region(inputs_fd, offset, input_bytes, False, bool(populate)),
            Region(outputs_fd, 0, output_bytes, True, bool(populate)),
        ]
        self.bases = [self._regions[0].address] * inputs + [self._regions[1].address] * outputs
        for base, tensor in zip(self.bases, tensors, strict=True):
            for number in range(guarded):
                libc.mprotect(base + tensor.base + (number + 1) * tensor.pitch - PAGE, PAGE, PROT_NONE)

    def addresses(self, number: int) -> list[int]:
        tensors = (*self.inputs, *self.outputs)
        return [base + t.start + number * t.pitch for base, t in zip(self.bases, tensors, strict=True)]

    def unmap(self) -> None:
        for region in self._regions:
            region.unmap()


class Calls:
    """A plan's calls as torch sees them: the arguments of each set, and the chain that says which is next."""

    def __init__(self, torch: Any, plan: Plan, library: Any) -> None:
        self._step = library.step
        self._step.restype = ctypes.c_int64
        self._chain = Chain(linked=plan.linked)
        self._address = ctypes.c_void_p(ctypes.addressof(self._chain))
        self._shared = self._link(torch, plan) if plan.linked else {}
        for base, tensor in zip(plan.bases[len(plan.inputs) :], plan.outputs, strict=True):
            self._chain.add_output(base + tensor.start, tensor.pitch, tensor.shape, tensor.dtype)
        self._arguments = [self._of(torch, plan, number) for number in range(plan.sets)]

    def _link(self, torch: Any, plan: Plan) -> dict[int, Any]:
        """Memory for each activation, laid out as every set's, which all calls are given."""
        shared = {}
        for index, (base, tensor) in enumerate(zip(plan.bases, plan.inputs, strict=False)):
            if not tensor.weight:
                memory = torch.full((tensor.span,), -1, dtype=torch.int8).view(getattr(torch, tensor.dtype))
                shared[index] = memory.as_strided(tensor.shape, tensor.strides)
                self._chain.add_input(
                    base + tensor.start, tensor.pitch, tensor.shape, tensor.strides, tensor.dtype, memory.data_ptr()
                )
        return shared

    def _of(self, torch: Any, plan: Plan, number: int) -> tuple[Any, ...]:
        addresses = plan.addresses(number)
        tensors = [
            self._shared[index] if index in self._shared else view(torch, address, tensor)
            for index, (address, tensor) in enumerate(zip(addresses, (*plan.inputs, *plan.outputs), strict=True))
        ]
        return (*tensors[: len(plan.inputs)], *plan.scalars, *tensors[len(plan.inputs) :])

    def run(self, function: Any, seed: int, calls: int, pool: Any) -> None:
        """Calls so many sets of the pool. It knows one call at a time."""
        arguments, step, address = self._arguments, self._step, self._address
        self._chain.restart(seed, pool.buffer_info()[0], len(pool))
        for _ in range(calls):
            function(*arguments[step(address)])


class Settings:
    """What this process and its main thread are set to, and what torch is: a candidate leaves all of it as it was."""

    def __init__(self, torch: Any, library: Any) -> None:
        self._torch = torch
        self._library = library
        library.arithmetic.restype = ctypes.c_uint64
        library.changed_setting.restype = ctypes.c_char_p
        library.restore_arithmetic.argtypes = (ctypes.c_uint64,)
        library.read_settings.argtypes = (ctypes.c_void_p,)
        library.changed_setting.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)

    def arithmetic(self) -> int:
        """How the thread rounds, flushes and traps."""
        return int(self._library.arithmetic())

    def restore_arithmetic(self, before: int) -> None:
        self._library.restore_arithmetic(before)

    def read(self) -> tuple[Any, dict[str, Any]]:
        """All of them."""
        native = (ctypes.c_uint64 * SETTINGS_ROOM)()
        self._library.read_settings(native)
        torch = self._torch
        return native, {
            "torch's number of threads": torch.get_num_threads(),
            "torch's default dtype": torch.get_default_dtype(),
            "torch's default device": torch.get_default_device(),
            "torch's precision of matrix products": torch.get_float32_matmul_precision(),
            "whether torch is deterministic": torch.are_deterministic_algorithms_enabled(),
            "whether torch records gradients": torch.is_grad_enabled(),
            "Python's garbage collection": gc.isenabled(),
            "Python's recursion limit": sys.getrecursionlimit(),
        }

    def compare(self, before: tuple[Any, dict[str, Any]], *, requests_between: bool = False) -> None:
        """Raises RefusalError if one is not what it was."""
        native, others = self.read()
        changed = next((name for name, value in others.items() if value != before[1][name]), None)
        found = self._library.changed_setting(before[0], native, requests_between)
        if changed or found:
            raise RefusalError(LEFT_CHANGED.format(changed or found.decode()))

    def compare_arithmetic(self, before: int) -> None:
        """Likewise of that alone, which takes no time."""
        if self.arithmetic() != before:
            raise RefusalError(LEFT_CHANGED.format("its thread's floating-point control word"))


class PythonExecutor:
    """Calls `run(*inputs, *scalars, *outputs)` of a candidate's `main.py` on torch tensors over the judge's buffers."""

    def __init__(self, payload: bytes, library: Any) -> None:
        import torch

        self._torch = torch
        self._library = library
        self._settings = Settings(torch, library)
        before, arithmetic = self._settings.read(), self._settings.arithmetic()
        folder = unpack(json.loads(payload[LOAD_HEAD.size :]))
        sys.path.insert(0, folder)
        try:
            with open(folder + "/main.py", encoding="utf-8") as file:
                text = file.read()
            names: dict[str, Any] = {"__name__": "candidate", "__file__": "main.py"}
            exec(compile(text, "main.py", "exec"), names)
            self._run = names["run"]
        except KeyError:
            raise RefusalError("main.py defines no run(*inputs, *scalars, *outputs)") from None
        except Exception as error:
            raise RefusalError(f"main.py cannot be loaded: {type(error).__name__}: {error}") from None
        self._settings.restore_arithmetic(arithmetic)  # as after an object that switches denormals off
        self._settings.compare(before)
        self._loaded = self._settings.read()
        self._plan: Plan | None = None
        self._calls: Calls | None = None

    def plan(self, payload: bytes, inputs_fd: int, outputs_fd: int) -> None:
        self._calls = None
        if self._plan is not None:
            self._plan.unmap()
        self._plan = Plan(payload, inputs_fd, outputs_fd)
        self._calls = Calls(self._torch, self._plan, self._library)

    def setup(self, numbers: Any) -> None:
        raise RefusalError("a Python candidate has no setup phase")

    def run(self, seed: int, calls: int, pool: Any) -> None:
        assert self._calls is not None and self._plan is not None
        before = self._settings.read() if self._plan.guarded else None
        arithmetic = self._settings.arithmetic()
        with self._torch.inference_mode():
            try:
                self._calls.run(self._run, seed, calls, pool)
            except Exception as error:
                raise RefusalError(f"run raised {type(error).__name__}: {error}") from None
        self._settings.compare_arithmetic(arithmetic)
        if before is not None:
            self._settings.compare(before)

    def review(self) -> None:
        """Raises RefusalError if a setting is not what it was when the candidate was loaded."""
        self._settings.compare(self._loaded, requests_between=True)


def unpack(files: dict[str, str]) -> str:
    """Writes the candidate's files, given in base 64, into a new private folder."""
    folder = tempfile.mkdtemp(prefix="candidate-")
    for name, content in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(content))
    return folder


def view(torch: Any, address: int, tensor: Tensor) -> Any:
    """A torch tensor over memory that is already there."""
    memory = (ctypes.c_char * tensor.span).from_address(address)
    return torch.frombuffer(memory, dtype=getattr(torch, tensor.dtype)).as_strided(tensor.shape, tensor.strides)


def receive(channel: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        chunk = channel.recv(size - len(parts))
        if not chunk:
            raise EOFError
        parts += chunk
    return bytes(parts)


def serve(channel: socket.socket, inputs_fd: int, outputs_fd: int, load: Any) -> None:
    """Answers requests until QUIT or the end of the channel. `load` makes the executor from a LOAD's payload."""
    executor: Any = None
    while True:
        try:
            kind, size, nonce = HEADER.unpack(receive(channel, HEADER.size))
            payload = receive(channel, size)
        except EOFError:
            return
        answer, text = DONE, ""
        try:
            if kind == RUN:
                seed, calls, _ = RUN_HEAD.unpack_from(payload)
                executor.run(seed, calls, array.array("I", payload[RUN_HEAD.size :]))
            elif kind == SETUP:
                executor.setup(array.array("I", payload))
            elif kind == PLAN:
                executor.plan(payload, inputs_fd, outputs_fd)
            elif kind == LOAD:
                executor = load(payload)
            elif kind == REVIEW:
                executor.review()
            elif kind == QUIT:
                return
        except RefusalError as refusal:
            answer, text = REFUSED, str(refusal)
        except MemoryError as error:
            answer, text = FAILED, str(error)
        encoded = text.encode(errors="replace")[:MAX_TEXT_BYTES]
        channel.sendall(HEADER.pack(answer, len(encoded), nonce) + encoded)


def main(settings: dict[str, Any]) -> None:
    """Entry from `zygote.py`, which has imported torch: the descriptors of the channel and of the two shared files."""
    import torch

    torch.set_num_threads(settings["threads"])
    library = ctypes.CDLL(settings["library"])
    channel = socket.socket(fileno=settings["channel"])
    serve(channel, settings["inputs_fd"], settings["outputs_fd"], lambda payload: PythonExecutor(payload, library))
