"""The engine's key/value cache: transformers' dynamic cache that appends in place.

Shapes: B batch, M key heads, L tokens so far, D head dimension. Rows are padded on the left to one length. Appending
writes behind the first L tokens of a buffer with room to grow and never changes them, so a decode block can be repeated
from the same state by cutting the length back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

HEADROOM_TOKENS = 64


class AppendingLayer(DynamicLayer):  # type: ignore[misc,no-untyped-call,unused-ignore]
    """One layer. `keys` and `values` are views of the filled part of their buffers."""

    keys: Any
    values: Any

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call,unused-ignore]
        self._key_buffer: Tensor | None = None
        self._value_buffer: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Appends the states of new tokens; returns all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[2]
        if self._key_buffer is None or self._value_buffer is None or end > self._key_buffer.shape[2]:
            self._key_buffer = _grown(self.keys, start, key_states, end)
            self._value_buffer = _grown(self.values, start, value_states, end)
        self._key_buffer[:, :, start:end] = key_states
        self._value_buffer[:, :, start:end] = value_states
        self.keys, self.values = self._key_buffer[:, :, :end], self._value_buffer[:, :, :end]
        return self.keys, self.values

    def hold(self, keys_BMLD: Tensor, values_BMLD: Tensor) -> None:
        """Takes over states that were put together elsewhere."""
        self.lazy_initialization(keys_BMLD, values_BMLD)
        self.keys, self.values = keys_BMLD, values_BMLD
        self._key_buffer = self._value_buffer = None

    def cut(self, length: int) -> None:
        """Forgets all tokens from `length` on."""
        self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]


def _grown(filled: Tensor, length: int, states: Tensor, end: int) -> Tensor:
    buffer = states.new_empty((states.shape[0], states.shape[1], end + HEADROOM_TOKENS, states.shape[3]))
    if length:
        buffer[:, :, :length] = filled
    return buffer


class BatchCache(DynamicCache):
    """The cache of one running batch."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.appending = [AppendingLayer() for _ in range(layers)]
        self.layers = [*self.appending]

    @property
    def length(self) -> int:
        """Tokens held, padding included."""
        return int(self.appending[0].get_seq_length())

    def cut(self, length: int) -> None:
        """Returns to an earlier length; what was held then is unchanged."""
        for layer in self.appending:
            layer.cut(length)

    def joined(self, other: BatchCache) -> BatchCache:
        """A cache with the rows of both, the shorter one padded on the left with zeros."""
        length = max(self.length, other.length)
        result = BatchCache(len(self.appending))
        for layer, own, new in zip(result.appending, self.appending, other.appending, strict=True):
            layer.hold(
                torch.cat([_padded(own.keys, length), _padded(new.keys, length)]),
                torch.cat([_padded(own.values, length), _padded(new.values, length)]),
            )
        return result

    def kept(self, rows: list[int], first: int) -> BatchCache:
        """A cache of some rows, without the first tokens, which must be padding in all of them."""
        result = BatchCache(len(self.appending))
        for layer, own in zip(result.appending, self.appending, strict=True):
            layer.hold(own.keys[rows, :, first:], own.values[rows, :, first:])
        return result


def _padded(states_BMLD: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(states_BMLD, (0, 0, length - states_BMLD.shape[2], 0))
