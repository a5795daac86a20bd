"""The fields of a Hugging Face `config.json`, read strictly: what is missing or makes no sense is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels.errors import ModelError

REQUIRED = object()
LARGEST = 1 << 24
"""Of any extent: a model that is wider has not been built yet, and a typing error has."""


@dataclass(frozen=True)
class ConfigFields:
    """One object of the file."""

    values: Mapping[str, object]
    place: str = "config"

    def within(self, name: str) -> ConfigFields | None:
        """The object under that name, if there is one."""
        inner = self.values.get(name)
        if inner is None:
            return None
        if not isinstance(inner, Mapping):
            raise self.refusal(name, "an object")
        return ConfigFields(inner, f"{self.place}.{name}")

    def extent(self, name: str, default: object = REQUIRED, *, largest: int = LARGEST) -> int:
        """A whole number of at least 1."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
            raise self.refusal(name, f"a whole number from 1 to {largest}")
        return value

    def count(self, name: str, default: int) -> int:
        """A whole number of at least 0."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
            raise self.refusal(name, f"a whole number from 0 to {LARGEST}")
        return value

    def optional_extent(self, name: str, default: int | None = None) -> int | None:
        """Likewise; null means none."""
        if name in self.values and self.values[name] is None:
            return None
        return None if name not in self.values and default is None else self.extent(name, default)

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.refusal(name, "true or false")
        return value

    def has_number(self, name: str, default: float | None = None) -> bool:
        """Whether there is a positive number under that name; null means none."""
        value = self.values.get(name, default)
        if value is None:
            return False
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.refusal(name, "a positive number or null")
        return True

    def choice(self, name: str, choices: Sequence[str], default: object = REQUIRED) -> str:
        value = self._value(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.refusal(name, "one of " + ", ".join(choices))
        return value

    def names(self, name: str, choices: Sequence[str], length: int) -> tuple[str, ...] | None:
        """A list of so many words; None where there is none."""
        value = self._value(name, None)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) != length or any(word not in choices for word in value):
            raise self.refusal(name, f"{length} of " + ", ".join(choices))
        return tuple(value)

    def places(self, name: str) -> frozenset[int]:
        """A list of layer numbers; missing or null is none."""
        value = self._value(name, ())
        if not isinstance(value, list | tuple) or any(isinstance(n, bool) or not isinstance(n, int) for n in value):
            raise self.refusal(name, "a list of layer numbers")
        return frozenset(value)

    def first_of(self, *names: str) -> str:
        """The name, of several spellings, that the file has; the first where it has none."""
        return next((name for name in names if self.values.get(name) is not None), names[0])

    def refusal(self, name: str, expected: str) -> ModelError:
        if name not in self.values:
            return ModelError(f"{self.place}: field {name!r} is missing, expected {expected}")
        return ModelError(f"{self.place}.{name}: found {repr(self.values[name])[:80]}, expected {expected}")

    def _value(self, name: str, default: object) -> object:
        """Null is as good as missing where there is a default."""
        value = self.values.get(name)
        if value is not None:
            return value
        if default is REQUIRED:
            raise self.refusal(name, "a value")
        return default
