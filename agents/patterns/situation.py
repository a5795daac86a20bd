"""A situation: what patterns ask about one workload on one kind of hardware. Estimates, not measurements."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass

from agents.errors import PatternError
from agents.memory import family_of
from gristmill.hardware import VECTOR_FLAGS, Hardware, kind_of_key, local_cpu
from gristmill.workload import ITEM_BYTES, Workload
from kernels.definition import Definition, Role
from kernels.devices.device_profile import profile_of
from kernels.roofline import VECTOR_BYTES, ceiling_gflops

KINDS = ("cpu", "cuda", "rocm")
"""Kinds of hardware."""
BOUNDS = ("memory", "compute", "latency")
X86_FLAGS, ARM_FLAGS = VECTOR_FLAGS[:-2], VECTOR_FLAGS[-2:]
CPU_KEY = re.compile(rf"[^\s-]+-\S+-[^\s-]+-[^\s-]+-(?:{'|'.join(VECTOR_FLAGS)}|scalar)")
NOMINAL_CLOCK_GHZ = 3.0
CORE_GB_S = 10.0
"""Memory bandwidth per core that a server gives, roughly."""
GPU_GB_S = 2000.0
GPU_GFLOPS = {"float32": 50_000.0, "bfloat16": 700_000.0}
"""Of a GPU without a hardware profile, and of none in particular; roughly."""
LATENCY_NS = 5000.0
"""Below, waking threads or launching a kernel takes as long as the work."""


@dataclass(frozen=True)
class Situation:
    """The facts that conditions may use, by name."""

    operator: str
    family: str
    """One of `agents.memory.FAMILIES`, or the operator's own name."""
    dtype: str
    kind: str
    """Of hardware."""
    flags: tuple[str, ...]
    """Vector features of the CPU."""
    cores: int
    lanes: int
    """Elements of float32 in the widest vector."""
    bound: str
    """What limits the call: memory, compute or latency."""
    rows: int
    """Extent of the axis whose places are computed one by one; 1 where there is none."""
    row_elements: int
    """Elements of the widest activation in one row."""
    row_bytes: int
    """Bytes of all activations read for one row."""
    outputs_per_row: int
    """Elements that one row writes, all outputs together."""
    depth: int
    """Products that are summed for one output of a linear operator; 1 elsewhere."""
    activations: int
    """Activation tensors read."""
    weight_bytes: int
    read_bytes: int
    written_bytes: int
    flops: int
    intensity: float
    """Operations per byte moved."""
    strided: bool
    """Whether some input is not dense."""

    @property
    def facts(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in FACTS}


FACTS = frozenset(field.name for field in dataclasses.fields(Situation))


def situation(definition: Definition, workload: Workload, hardware: Hardware) -> Situation:
    """What patterns may know of this call."""
    item = ITEM_BYTES[workload.dtype]
    cost = definition.cost(workload.axes, item)
    rows = workload.axes.get(definition.row_axis, 1)
    inputs = list(zip(definition.inputs, workload.inputs, strict=True))
    activations = [layout for spec, layout in inputs if spec.role is Role.ACTIVATION]
    weights = [(spec, layout) for spec, layout in inputs if spec.role is Role.WEIGHT]
    outputs = sum(math.prod(workload.axes[dim] for dim in spec.dims) for spec in definition.outputs)
    return Situation(
        operator=definition.name,
        family=family_of(definition.name),
        dtype=workload.dtype,
        kind=kind(hardware),
        flags=hardware.vector_flags,
        cores=hardware.cores,
        lanes=_vector_bytes(hardware) // 4,
        bound=_bound(cost.flops, cost.bytes_moved, workload.dtype, hardware),
        rows=rows,
        row_elements=max((math.prod(layout.shape) // rows for layout in activations), default=0),
        row_bytes=sum(math.prod(layout.shape) for layout in activations) * item // rows,
        outputs_per_row=outputs // rows,
        depth=_depth(definition, workload),
        activations=len(activations),
        weight_bytes=sum(math.prod(layout.shape) for _, layout in weights) * item,
        read_bytes=cost.bytes_read,
        written_bytes=cost.bytes_written,
        flops=cost.flops,
        intensity=cost.flops / max(cost.bytes_moved, 1),
        strided=any(not layout.contiguous for _, layout in inputs),
    )


def kind(hardware: Hardware) -> str:
    """One of `KINDS`, by the hardware's key."""
    return kind_of_key(hardware.key)


def check_key(key: str) -> None:
    """Returns if this is a kind of hardware or has the shape of a key.

    Raises:
        PatternError: it is neither.
    """
    if key not in KINDS and kind_of_key(key) == "cpu" and not CPU_KEY.fullmatch(key):
        raise PatternError(
            f"hardware {key!r} is unknown: expected {', '.join(KINDS)} or a key like sm_90 or {local_cpu().key}"
        )


def hardware_of_key(key: str, cores: int) -> Hardware:
    """As much as a key says: a CPU's ends with its widest vector feature, and those before it are taken to be there."""
    widest = key.rpartition("-")[2]
    known = next((flags for flags in (X86_FLAGS, ARM_FLAGS) if widest in flags), ())
    return Hardware(key, key, cores, known[: known.index(widest) + 1] if known else ())


def _depth(definition: Definition, workload: Workload) -> int:
    """Extent of what the widest weight is summed over."""
    if not definition.independent_axis:
        return 1
    weights = [spec for spec in definition.inputs if spec.role is Role.WEIGHT]
    return max(math.prod(workload.axes[dim] for dim in w.dims if dim != definition.independent_axis) for w in weights)


def _bound(flops: int, moved_bytes: int, dtype: str, hardware: Hardware) -> str:
    if kind(hardware) == "cpu":
        gflops, gb_s = ceiling_gflops(hardware, NOMINAL_CLOCK_GHZ)[dtype], CORE_GB_S * hardware.cores
    else:
        known = profile_of(hardware.key)
        gb_s = known.memory_bandwidth_gb_s if known else GPU_GB_S
        rates = known.gflops if known else GPU_GFLOPS
        gflops = rates.get(dtype, rates["float32"])
    compute_ns, memory_ns = flops / gflops, moved_bytes / gb_s
    if max(compute_ns, memory_ns) < LATENCY_NS:
        return "latency"
    return "memory" if memory_ns >= compute_ns else "compute"


def _vector_bytes(hardware: Hardware) -> int:
    return next((width for flag, width in VECTOR_BYTES.items() if flag in hardware.vector_flags), 16)
