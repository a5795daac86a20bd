"""Traffic in which one operator feeds another: ten of a hundred calls were traced."""

from __future__ import annotations

from dataclasses import replace

from gristmill.sequence import Edge
from gristmill.workload import Workload
from kernels import catalogue, inputs
from kernels.profile import TrafficProfile
from tests.tasks.world import profile

FUSED = "silu_and_mul+skinny_linear"
"""What `feeding` gives cause to fuse."""
TWINS = "rotary_embedding-rotary_embedding"
"""Composes, and no pattern writes it."""
Place = tuple[str, dict[str, int]]
GATED: Place = ("silu_and_mul", {"intermediate": 96})
UP: Place = ("skinny_linear", {"in_features": 64, "out_features": 96})
DOWN: Place = ("skinny_linear", {"in_features": 96, "out_features": 64})
HEADS: Place = ("rotary_embedding", {"query_heads": 2, "key_heads": 1, "head_dim": 16})


def called(place: Place, tokens: int, time_ns: int) -> Workload:
    made = inputs.workload(catalogue.operator(place[0]), "float32", tokens=tokens, **place[1])
    return replace(made, calls=100, time_ns=time_ns)


def edge(producer: Place, consumer: Place, position: int = 0, uses: int = 1, calls: int = 10) -> Edge:
    return Edge(*producer, 0, *consumer, position, "float32", uses, calls)


def feeding(*tokens: int, time_ns: int = 10**9) -> TrafficProfile:
    """A gated activation and the projection of it, at these numbers of tokens."""
    calls = [called(place, count, time_ns) for place in (GATED, DOWN) for count in tokens or (4,)]
    return replace(profile(*calls), edges=(edge(GATED, DOWN),))


def twins() -> TrafficProfile:
    """The same beside two rotary embeddings of one tensor."""
    both = edge(DOWN, HEADS, uses=2, calls=20)
    traffic = feeding()
    return replace(
        traffic,
        workloads=(*traffic.workloads, replace(called(HEADS, 4, 2 * 10**9), calls=200)),
        edges=(*traffic.edges, both),
    )


def feed_forward() -> TrafficProfile:
    """The whole block of a Llama: one gated projection in which smaller fusions lie, and the projection after it."""
    calls = [called(GATED, 4, 10**9), called(DOWN, 4, 10**9), replace(called(UP, 4, 2 * 10**9), calls=200)]
    norm: Place = ("rms_norm", {"hidden": 64})
    edges = (edge(norm, UP, uses=2, calls=20), edge(UP, GATED), edge(UP, GATED, position=1), edge(GATED, DOWN))
    return replace(profile(*calls, called(norm, 4, 10**8)), edges=edges)
