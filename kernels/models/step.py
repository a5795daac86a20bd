"""One step of an engine: what it has to do, and the operator calls that it makes for that."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.errors import ModelError


@dataclass(frozen=True)
class StepBatch:
    """The requests of one step.

    Raises:
        ModelError: a length is below what a request has, or there is no request at all.
    """

    decode_context_lengths: tuple[int, ...] = ()
    """Per request that decodes, how many positions its one new token attends to, itself among them."""
    prefill_chunks: tuple[tuple[int, int], ...] = ()
    """Per request whose prompt is read, how many tokens of it in this step, and how many were read before."""

    def __post_init__(self) -> None:
        if not self.decode_context_lengths and not self.prefill_chunks:
            raise ModelError("step batch: no request in it, expected at least one that decodes or reads its prompt")
        if any(length < 1 for length in self.decode_context_lengths):
            raise ModelError(
                f"step batch: decode context of {min(self.decode_context_lengths)} tokens, expected at least 1 "
                "(the new token itself)"
            )
        for chunk, before in self.prefill_chunks:
            if chunk < 1 or before < 0:
                raise ModelError(
                    f"step batch: prefill chunk of {chunk} tokens after {before}, expected at least 1 after at least 0"
                )

    @property
    def tokens(self) -> int:
        """That go through every layer."""
        return len(self.decode_context_lengths) + sum(chunk for chunk, _ in self.prefill_chunks)

    @property
    def requests(self) -> int:
        """Logits are computed for the last token of each."""
        return len(self.decode_context_lengths) + len(self.prefill_chunks)


@dataclass(frozen=True)
class OperatorCall:
    """Equal calls of one operator in one step."""

    operator: str
    """A name of the catalogue where there is a definition; otherwise one of `kernels.models.vocabulary`."""
    axes: dict[str, int]
    """In the definition's order."""
    dtype: str
    count: int
    """Calls per step."""

    @property
    def label(self) -> str:
        """Short form for tables and messages."""
        return " ".join([self.operator, self.dtype, *(f"{name}={extent}" for name, extent in self.axes.items())])


def merged(calls: list[OperatorCall]) -> tuple[OperatorCall, ...]:
    """Equal calls counted together, in the order in which they first come."""
    counts: dict[str, int] = {}
    first: dict[str, OperatorCall] = {}
    for call in calls:
        counts[call.label] = counts.get(call.label, 0) + call.count
        first.setdefault(call.label, call)
    return tuple(OperatorCall(call.operator, call.axes, call.dtype, counts[label]) for label, call in first.items())
