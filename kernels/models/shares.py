"""How the time of a step is shared among its operators, by the roofline of a device.

Each call takes as long as computing at peak or moving its bytes at peak bandwidth, whichever is longer (Williams,
Waterman, Patterson, CACM 52(4), 2009). What a launch costs is left out: calls so small that launches
dominate weigh more than is said here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels.definition import Cost
from kernels.devices.device_profile import DeviceProfile, profiles
from kernels.errors import ModelError
from kernels.models.step import OperatorCall
from kernels.roofline import Peaks

LOCAL = "local"


@dataclass(frozen=True)
class Device:
    """Peaks that a vendor states, or that were measured."""

    name: str
    memory_bandwidth_gb_s: float
    gflops: Mapping[str, float]
    """Dense matrix products by dtype."""

    def flops_per_ns(self, dtype: str) -> float:
        """Of the dtype; float16 counts as bfloat16, floats of eight bits are alike, what is not stated is float32."""
        named = {"float16": "bfloat16"}.get(dtype, "float8" if dtype.startswith("float8") else dtype)
        return self.gflops.get(named, self.gflops["float32"])


def _stated(profile: DeviceProfile) -> Device:
    return Device(profile.name, profile.memory_bandwidth_gb_s, profile.gflops)


DEVICES = {name: _stated(profile) for name, profile in profiles().items()}
"""By name: those that have a hardware profile."""


def device(name: str) -> Device:
    """The device of that name.

    Raises:
        ModelError: it is not one of `DEVICES`.
    """
    if name not in DEVICES:
        raise ModelError(f"device {name!r}: expected {LOCAL}, {', '.join(DEVICES)}")
    return DEVICES[name]


def measured(peaks: Peaks) -> Device:
    """This machine, as the roofline has measured it."""
    return Device(LOCAL, peaks.memory_bandwidth_gb_s, peaks.gflops)


@dataclass(frozen=True)
class Share:
    """What the calls of one kind take of a step."""

    call: OperatorCall
    time_ns: float
    """Of all of them together."""
    time_share: float


def shares(calls: Sequence[tuple[OperatorCall, Cost]], on: Device) -> tuple[Share, ...]:
    """Of all calls, the most time first; the shares sum to one.

    Raises:
        ModelError: no call costs anything.
    """
    times = [call.count * _time_ns(call, cost, on) for call, cost in calls]
    total = math.fsum(times)
    if total <= 0:
        raise ModelError("operators: none that computes or moves anything, so time cannot be shared among them")
    found = [Share(call, time, time / total) for (call, _), time in zip(calls, times, strict=True)]
    return tuple(sorted(found, key=lambda share: -share.time_ns))


def _time_ns(call: OperatorCall, cost: Cost, on: Device) -> float:
    return max(cost.flops / on.flops_per_ns(call.dtype), cost.bytes_moved / on.memory_bandwidth_gb_s)
