"""The untrusted runner: loads one candidate and runs it on buffer sets that the judge prepared. Standard library only.

It is started by `confine.py`, imports nothing of Gristmill, holds no expected output and no clock that counts. Whatever
it says is taken as a claim: "done" stops the judge's clock, and then the judge looks at the buffers.

A message is a header (kind, payload bytes, nonce) and a payload: JSON for LOAD and PLAN, set numbers for SETUP and RUN.
An answer repeats the nonce. Baselines are served by the same loop in a process of their own.
"""

from __future__ import annotations

import array
import base64
import ctypes
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
LOAD, PLAN, SETUP, RUN, QUIT = 1, 2, 3, 4, 5
DONE, REFUSED, FAILED = 101, 102, 103
MAX_TEXT_BYTES = 2000

PAGE = mmap.PAGESIZE
PROT_NONE, PROT_READ, PROT_WRITE = 0, 1, 2
MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS, MAP_POPULATE = 1, 2, 0x20, 0x8000
MADV_POPULATE_READ, MADV_POPULATE_WRITE = 22, 23
MAP_FAILED = ctypes.c_void_p(-1).value
MAX_RANK = 4
DTYPE_CODES = {"float32": 1, "bfloat16": 2, "float64": 3, "int32": 4, "int64": 5}

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class RefusalError(Exception):
    """The candidate declined, or is not what it claims to be; the text says how."""


class GmTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK),
        ("stride", ctypes.c_int64 * MAX_RANK),
    )


class GmCall(ctypes.Structure):
    _fields_ = (
        ("inputs", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("scalars", ctypes.c_void_p),
        ("packed", ctypes.c_void_p),
    )


def map_memory(size: int, protection: int, flags: int, fd: int = -1, offset: int = 0) -> int:
    address = libc.mmap(None, size, protection, flags, fd, offset)
    if address == MAP_FAILED:
        raise MemoryError(f"cannot map {size} bytes")
    return int(address)


def unpack(files: dict[str, str]) -> str:
    """Writes the candidate's files, given in base 64, into a new private folder."""
    folder = tempfile.mkdtemp(prefix="candidate-")
    for name, content in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(content))
    return folder


class Region:
    """A part of a shared file in this process, with pages in it that nothing may touch."""

    def __init__(self, fd: int, size: int, guards: list[int], writable: bool) -> None:
        self.address = 0
        protection = PROT_READ | (PROT_WRITE if writable else 0)
        self.size = size
        if not size:
            return
        self.address = map_memory(size, protection, MAP_SHARED, fd)
        for offset in guards:
            libc.mprotect(self.address + offset, PAGE, PROT_NONE)
        populate = MADV_POPULATE_WRITE if writable else MADV_POPULATE_READ
        start = 0
        for end in [*guards, size]:
            if end > start:  # map now what a timed call would otherwise fault in
                libc.madvise(self.address + start, end - start, populate)
            start = end + PAGE

    def unmap(self) -> None:
        if self.size:
            libc.munmap(self.address, self.size)


class Plan:
    """One workload's buffer sets in this process."""

    def __init__(self, message: dict[str, Any], inputs_fd: int, outputs_fd: int) -> None:
        self.inputs = message["inputs"]
        self.outputs = message["outputs"]
        self.scalars = message["scalars"]
        self.weights = message["weights"]
        self._regions = [
            Region(inputs_fd, message["input_bytes"], message["input_guards"], False),
            Region(outputs_fd, message["output_bytes"], message["output_guards"], True),
        ]
        bases = [self._regions[0].address] * len(self.inputs) + [self._regions[1].address] * len(self.outputs)
        self.addresses = [
            [base + start + number * pitch for base, (start, pitch) in zip(bases, message["places"], strict=True)]
            for number in range(message["sets"])
        ]

    def unmap(self) -> None:
        for region in self._regions:
            region.unmap()


class CppExecutor:
    """Calls `gm_run` as a host does: one frame per plan, a pointer per tensor written before each call."""

    def __init__(self, message: dict[str, Any]) -> None:
        try:
            library = ctypes.CDLL(unpack(message["files"]) + "/object.so")
            self._run: Any = library.gm_run
            self._packed_bytes: Any = message["setup"] and library.gm_packed_bytes
            self._setup: Any = message["setup"] and library.gm_setup
        except (OSError, AttributeError) as error:
            raise RefusalError(f"cannot be loaded: {error}") from None
        self._run.argtypes = (ctypes.c_void_p,)
        self._run.restype = ctypes.c_int32
        if message["setup"]:
            self._packed_bytes.argtypes = (ctypes.c_void_p,)
            self._packed_bytes.restype = ctypes.c_int64
            self._setup.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
            self._setup.restype = ctypes.c_int32
        self._max_packed_bytes = message["max_packed_bytes"]
        self._packed: dict[int, tuple[int, int]] = {}
        self._plan: Any = None

    def plan(self, plan: Plan) -> None:
        for address, size in self._packed.values():
            libc.munmap(address, size)
        self._packed = {}
        if self._plan is not None:
            self._plan.unmap()
        self._plan = plan
        layouts = [*plan.inputs, *plan.outputs]
        self._frame = (GmTensor * len(layouts))()
        for tensor, layout in zip(self._frame, layouts, strict=True):
            rank = len(layout["shape"])
            tensor.dtype = DTYPE_CODES[layout["dtype"]]
            tensor.rank = rank
            tensor.shape = (ctypes.c_int64 * MAX_RANK)(*layout["shape"], *[1] * (MAX_RANK - rank))
            tensor.stride = (ctypes.c_int64 * MAX_RANK)(*layout["strides"], *[0] * (MAX_RANK - rank))
        self._words = memoryview(self._frame).cast("B").cast("q")
        self._step = ctypes.sizeof(GmTensor) // 8
        self._scalars = (ctypes.c_double * max(1, len(plan.scalars)))(*plan.scalars)
        base = ctypes.addressof(self._frame)
        outputs = base + ctypes.sizeof(GmTensor) * len(plan.inputs)
        self._call = GmCall(base, outputs, ctypes.addressof(self._scalars), None)
        self._call_words = memoryview(self._call).cast("B").cast("q")
        self._address = ctypes.c_void_p(ctypes.addressof(self._call))

    def setup(self, numbers: Any) -> None:
        for number in numbers:
            addresses = self._plan.addresses[number]
            for index, address in enumerate(addresses):
                weight = index < len(self._plan.weights) and self._plan.weights[index]
                self._words[index * self._step] = address if weight else 0
            self._call_words[3] = 0
            size = self._packed_bytes(self._address)
            if not 0 <= size <= self._max_packed_bytes:
                raise RefusalError(f"gm_packed_bytes returned {size}; expected 0 to {self._max_packed_bytes}")
            room = max(PAGE, -(-size // PAGE) * PAGE)
            address, held = self._packed.get(number, (0, 0))
            if held != room:
                if held:
                    libc.munmap(address, held)
                address = map_memory(room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS)
                self._packed[number] = (address, room)
            libc.mprotect(address, room, PROT_READ | PROT_WRITE)
            code = self._setup(self._address, address)
            libc.mprotect(address, room, PROT_READ)
            if code:
                raise RefusalError(f"gm_setup returned {code}; expected 0")

    def run(self, numbers: Any) -> None:
        words, step, call, address = self._words, self._step, self._run, self._address
        sets, packed = self._plan.addresses, self._packed
        for number in numbers:
            position = 0
            for pointer in sets[number]:
                words[position] = pointer
                position += step
            if packed:
                self._call_words[3] = packed[number][0]
            code = call(address)
            if code:
                raise RefusalError(f"gm_run returned {code} inside its own domain; expected 0")


class PythonExecutor:
    """Calls `run(*inputs, *scalars, *outputs)` of a candidate's `main.py` on torch tensors over the same buffers."""

    def __init__(self, message: dict[str, Any]) -> None:
        import torch

        self._torch = torch
        folder = unpack(message["files"])
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
        self._plan: Any = None
        self._calls: list[Any] = []

    def plan(self, plan: Plan) -> None:
        self._calls = []
        if self._plan is not None:
            self._plan.unmap()
        self._plan = plan
        layouts = [*plan.inputs, *plan.outputs]
        for addresses in plan.addresses:
            tensors = [view(self._torch, a, layout) for a, layout in zip(addresses, layouts, strict=True)]
            self._calls.append((*tensors[: len(plan.inputs)], *plan.scalars, *tensors[len(plan.inputs) :]))

    def setup(self, numbers: Any) -> None:
        raise RefusalError("a Python candidate has no setup phase")

    def run(self, numbers: Any) -> None:
        function, calls = self._run, self._calls
        with self._torch.inference_mode():
            for number in numbers:
                try:
                    function(*calls[number])
                except Exception as error:
                    raise RefusalError(f"run raised {type(error).__name__}: {error}") from None


def view(torch: Any, address: int, layout: dict[str, Any]) -> Any:
    """A torch tensor over memory that is already there."""
    dtype = getattr(torch, layout["dtype"])
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(layout["shape"], layout["strides"], strict=True))
    memory = (ctypes.c_char * (span * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided(layout["shape"], layout["strides"])


def receive(channel: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        chunk = channel.recv(size - len(parts))
        if not chunk:
            raise EOFError
        parts += chunk
    return bytes(parts)


def serve(channel: socket.socket, inputs_fd: int, outputs_fd: int, load: Any) -> None:
    """Answers requests until QUIT or the end of the channel. `load` makes the executor from a LOAD message."""
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
                executor.run(array.array("I", payload))
            elif kind == SETUP:
                executor.setup(array.array("I", payload))
            elif kind == PLAN:
                executor.plan(Plan(json.loads(payload), inputs_fd, outputs_fd))
            elif kind == LOAD:
                executor = load(json.loads(payload))
            elif kind == QUIT:
                return
        except RefusalError as refusal:
            answer, text = REFUSED, str(refusal)
        except MemoryError as error:
            answer, text = FAILED, str(error)
        encoded = text.encode(errors="replace")[:MAX_TEXT_BYTES]
        channel.sendall(HEADER.pack(answer, len(encoded), nonce) + encoded)


def load_candidate(message: dict[str, Any]) -> Any:
    return CppExecutor(message) if message["language"] == "cpp" else PythonExecutor(message)


def main(settings: dict[str, Any]) -> None:
    """Entry from `confine.py`: the descriptors of the channel and of the two shared files."""
    sys.path[:] = settings["path"]
    if settings["path"]:  # a runner for Python: imports are done before there is anything to run
        import torch

        torch.set_num_threads(settings["threads"])
    channel = socket.socket(fileno=settings["channel"])
    serve(channel, settings["inputs_fd"], settings["outputs_fd"], load_candidate)
