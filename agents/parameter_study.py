"""A study: the search for the best values of one space, steered by Optuna's tree-structured Parzen estimator."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from agents.parameter_space import ParameterSpace, Values
from kernels.candidate import Candidate
from kernels.verdict import Verdict

if TYPE_CHECKING:
    import optuna

STARTUP_TRIALS = 6
"""Random trials before the estimator takes over, the first values included."""
GUIDED_ATTEMPTS = 8
"""How often the estimator may repeat itself before a neighbour of the best is taken."""
NEIGHBOUR_ATTEMPTS = 30
"""How many neighbours of the best may all be known before a random combination is taken."""
RANDOM_ATTEMPTS = 200
"""How many random combinations may all be known before the space counts as exhausted."""


class ParameterStudy:
    """Proposes what is not known. The same seed, first values and verdicts give the same proposals."""

    def __init__(
        self,
        space: ParameterSpace,
        make: Callable[[Mapping[str, int]], Candidate],
        first: Iterable[Values],
        known: set[str],
        seed: int,
    ) -> None:
        """
        Args:
            make: the candidate with the given values.
            first: values to try before others, in order.
            known: digests of candidates that are not to be proposed; shared, and added to.
        """
        self.space = space
        self.untried = list(first)
        self.proposed = 0
        """Calls of `next`."""
        self.exhausted = False
        self._make = make
        self._known = known
        self._random = random.Random(seed)
        self._study = _new_study(seed)
        self._open: dict[str, optuna.trial.Trial] = {}
        self._best: tuple[float, Values] | None = None

    def next(self) -> Candidate | None:
        """One new candidate, or None once in a while and at the end."""
        self.proposed += 1
        while self.untried:
            candidate = self._ask(self.untried.pop(0))
            if candidate is not None:
                return candidate
        for _ in range(GUIDED_ATTEMPTS):
            candidate = self._ask()
            if candidate is not None:
                return candidate
        for attempt in range(NEIGHBOUR_ATTEMPTS + RANDOM_ATTEMPTS):
            if self._best is not None and attempt < NEIGHBOUR_ATTEMPTS:
                values = self.space.neighbour(self._best[1], self._random)
            else:
                values = self.space.sample(self._random)
            if self._make(values).digest not in self._known:
                return self._ask(values)
        self.exhausted = True
        return None

    def tell(self, candidate: Candidate, verdict: Verdict) -> bool:
        """Takes in the verdict on a candidate, and says whether that was one of ours that waited for it."""
        import optuna

        trial = self._open.pop(candidate.digest, None)
        if trial is None:
            return False
        if verdict.ratio is None:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, verdict.ratio)
            self._remember(verdict.ratio, trial.params)
        return True

    def recall(self, values: Mapping[str, int], ratio: float) -> None:
        """Takes in what others found out; values outside the space are left out."""
        import optuna

        distributions: dict[str, optuna.distributions.BaseDistribution] = {
            parameter.name: optuna.distributions.CategoricalDistribution(parameter.choices)
            for parameter in self.space.parameters
            if parameter.when(values) and values.get(parameter.name) in parameter.choices
        }
        chosen = {name: values[name] for name in distributions}
        self._study.add_trial(optuna.trial.create_trial(params=chosen, distributions=distributions, value=ratio))
        self._remember(ratio, chosen)

    def _remember(self, ratio: float, values: Values) -> None:
        if self._best is None or ratio > self._best[0]:
            self._best = ratio, values

    def _ask(self, values: Values | None = None) -> Candidate | None:
        """Asks the study for one combination (the given one, if any); None if it does not fit or is known."""
        import optuna

        if values is not None:
            self._study.enqueue_trial(values)
        trial = self._study.ask()
        chosen = self.space.complete(lambda p: trial.suggest_categorical(p.name, p.choices))
        candidate = self._make(chosen) if self.space.fits(chosen) else None
        if candidate is None or candidate.digest in self._known:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return None
        self._known.add(candidate.digest)
        self._open[candidate.digest] = trial
        return candidate


def _new_study(seed: int) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, constant_liar=True)
    return optuna.create_study(direction="maximize", sampler=sampler)
