"""A domain: where a kernel may be used. Inside it must be right, outside it is never called."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gristmill.errors import DomainError
from gristmill.workload import TensorLayout, Workload


class Layout(StrEnum):
    """The weakest memory order that a kernel can read."""

    CONTIGUOUS = "contiguous"
    INNER_CONTIGUOUS = "inner_contiguous"
    ANY = "any"

    def admits(self, tensor: TensorLayout) -> bool:
        if self is Layout.CONTIGUOUS:
            return tensor.contiguous
        return self is Layout.ANY or tensor.inner_contiguous


@dataclass(frozen=True)
class AxisRange:
    """Closed interval of one axis, optionally in steps: `low <= extent <= high` and `extent % multiple == 0`."""

    name: str
    low: int
    high: int
    multiple: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high or self.multiple < 1:
            raise DomainError(f"axis {self.name}: {self.low}..{self.high} in steps of {self.multiple} holds no extent")

    def admits(self, extent: int) -> bool:
        return self.low <= extent <= self.high and extent % self.multiple == 0


@dataclass(frozen=True)
class Domain:
    """Predicates on a call. Axes that are not named may have any extent."""

    operator: str
    dtype: str
    ranges: tuple[AxisRange, ...] = ()
    layout: Layout = Layout.CONTIGUOUS

    def admits(self, workload: Workload) -> bool:
        """Whether the kernel may be called for this workload."""
        return (
            workload.operator == self.operator
            and workload.dtype == self.dtype
            and self.admits_axes(workload.axes)
            and all(self.layout.admits(tensor) for tensor in workload.inputs)
        )

    def admits_axes(self, axes: dict[str, int]) -> bool:
        """The part of `admits` that looks at extents only; an axis the call lacks is refused."""
        return all(r.name in axes and r.admits(axes[r.name]) for r in self.ranges)
