"""The second judgement of a search's winners as one task: own bench, fresh seeds, artifacts of what survives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from gristmill.kernel_table import Artifact
from kernels.candidate import Candidate
from tasks import bench, promotion
from tasks.errors import NoWinnerError
from tasks.promotion import Proof, Traffic
from tasks.settings import Settings

Told = Callable[[str], None]
"""Is told, in one line, what is going on."""


def prove_winners(
    settings: Settings,
    traffic: Traffic,
    winners: Mapping[tuple[str, str], Sequence[Candidate]],
    budget_s: float,
    tell: Told = lambda text: None,
) -> tuple[tuple[Proof, dict[str, str]], ...]:
    """The second judgement of all winners, in one bench session; with each proof what it depends on."""
    proofs = []
    with bench.proof_bench(settings, budget_s) as judges:
        for (operator, dtype), candidates in winners.items():
            tell(f"judging {len(candidates)} winners of {operator} {dtype} again")
            proofs.append((promotion.prove(judges, traffic, candidates, tell), judges.environment))
    return tuple(proofs)


def artifacts_of(
    proofs: Sequence[tuple[Proof, dict[str, str]]],
    settings: Settings,
    tell: Told,
    engine: Mapping[str, str] = MappingProxyType({}),
) -> tuple[tuple[Artifact, ...], dict[str, bytes]]:
    """Artifacts of the operators whose gains survived; the others are told and left out.

    Args:
        engine: versions by package that hosts ran when the traffic was sampled. A proof expires with these, too.

    Raises:
        NoWinnerError: none survived.
    """
    artifacts: list[Artifact] = []
    files: dict[str, bytes] = {}
    problems: list[str] = []
    for proof, environment in proofs:
        try:
            artifact, named = promotion.form_artifact(proof, settings, {**engine, **environment})
        except NoWinnerError as error:
            problems.append(str(error))
            tell(str(error))
            continue
        artifacts.append(artifact)
        files.update(named)
    if not artifacts:
        raise NoWinnerError("; ".join(problems))
    return tuple(artifacts), files
