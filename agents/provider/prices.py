"""What tokens cost, from the price map that came with litellm; nothing is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.chat import Usage
from agents.provider.wire import Price, Route

OTHER_TARIFFS = ("batches", "priority", "flex")
"""Ways of being served that are never asked for."""
DEAREST_CACHE = 2.0
"""What a token costs at most that a provider keeps for later calls, over one that it only reads."""
BYTES_PER_TOKEN = 3
"""Code and prose take more bytes per token in every tokenizer of note: an estimate with this is on the dear side."""


def price_of(route: Route) -> Price | None:
    """The configured price, or litellm's; None where neither is known."""
    if route.price is not None:
        return route.price
    entry = _entry(route.model)
    if entry is None:
        return None
    return Price(_dearest(entry, "input_cost_per_token"), _dearest(entry, "output_cost_per_"))


def cost_of(route: Route, input_tokens: int, output_tokens: int, reported: Any) -> Usage:
    """What a call cost. `reported` is litellm's usage object, which tells cached tokens apart; None: an estimate."""
    price = price_of(route) or Price(0.0, 0.0)
    dearest = price.of(input_tokens, output_tokens)
    if route.price is not None or reported is None or dearest.usd == 0:
        return dearest
    import litellm

    try:
        usd = float(sum(litellm.cost_per_token(model=route.model, usage_object=reported)))
    except Exception:  # litellm raises bare Exceptions for prices it cannot apply; the dearest tier is then the answer
        return dearest
    # Beyond these bounds the server told of more cached tokens than it read, or of fewer than none.
    return Usage(input_tokens, output_tokens, usd) if 0 <= usd <= DEAREST_CACHE * dearest.usd else dearest


def estimated_tokens(size_bytes: int) -> int:
    """For what a provider did not report, because the stream broke."""
    return -(-size_bytes // BYTES_PER_TOKEN)


def _entry(model: str) -> Mapping[str, Any] | None:
    """litellm's own look-up asks servers for some providers; this one reads the map and nothing else."""
    import litellm

    provider, _, bare = model.partition("/")
    entry = litellm.model_cost.get(model)
    if entry is None:
        entry = litellm.model_cost.get(bare)
        if entry is None or not str(entry.get("litellm_provider", "")).startswith(provider):
            return None
    return entry if "input_cost_per_token" in entry else None


def _dearest(entry: Mapping[str, Any], start: str) -> float:
    costs = [
        float(value)
        for name, value in entry.items()
        if name.startswith(start) and "token" in name and not any(tariff in name for tariff in OTHER_TARIFFS)
        if isinstance(value, int | float)
    ]
    return max(costs, default=0.0)
