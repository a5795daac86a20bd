"""A candidate's timing on one workload: pairs of batches, and a look at what the timed calls wrote.

Shape suffix: S sets.
"""

from __future__ import annotations

import math
import random
import time

import numpy as np

from harness import scheduling, timing
from harness.arena import Numbers, Walk
from harness.draws import Draws, part_size
from harness.opponent import Opponent
from harness.samples import Samples
from harness.session import Finding
from harness.timing import Pair, PairedTiming
from harness.trial import Batch, Trial
from harness.verification import TIMED_WRONG, Verification
from kernels.verdict import Status

WARM_CALLS = 16
WARM_BATCHES = 12
"""Of so many calls, at most, before a new process counts as warm."""
SETTLED = 0.9
"""Of what the batch before took, from which on another would not be much faster."""
DECOY_SHARE = 8
"""One set in so many of a batch is named, poisoned, and not called."""
VERIFIED_SETS = 16
VERIFIED_SETS_LEAST = 2
VERIFIED_SETS_LARGE = 2
"""Of a timed batch, whose outputs (or some rows of them, or some columns of large weights) are recomputed."""
SUSPECTED_PLACES = 4
DISGUISED_SETS = 64
DISGUISED_VERIFIED = 3
"""Of each regime."""
LARGEST_LINKED = 1e30


def time_trial(
    trial: Trial, opponent: Opponent, verification: Verification, deadline: float, *, disguised: bool
) -> PairedTiming:
    """Pairs of batches until the policy's stop rule is content; outputs of every timed batch are looked at.

    One more batch holds stress values where a candidate expects traffic; where weights are large, and take long to
    copy, only if `disguised`. Samples go to `verification`, which is to be finished.

    Raises:
        Finding: a timed call was wrong, or took a time that cannot be.
    """
    pairs = Pairs(trial, opponent)
    pairs.prepare()

    def clock_s() -> float:
        if time.monotonic() > deadline:
            raise Finding(Status.TIMED_OUT, f"{trial.label}: not measured within {trial.policy.total_s:.0f} s")
        return time.monotonic()

    try:
        sides = [pid for pid in (trial.session.process_id, opponent.process_id) if pid is not None]
        with scheduling.measuring() as trial.real_time, scheduling.on_the_same_core(sides, pairs.order) as move:
            trial.session.hasten()
            opponent.hasten()

            def measure(candidate_first: bool) -> Pair:
                move()
                return pairs.measure(candidate_first)

            paired = timing.collect(measure, trial.policy.stop, pairs.order, clock_s)
    except timing.VoidRunError as error:
        raise Finding(Status.CHEATED, f"{trial.label}: {error}; the run is void") from None
    pairs.verify(verification)
    if disguised or not trial.definition.independent_axis:  # who is careless may be so on one of many sizes
        pairs.check_in_disguise(verification)
    return paired


class Pairs:
    """The two sides of a pair, with batch sizes, changes of inputs and verification."""

    def __init__(self, trial: Trial, opponent: Opponent) -> None:
        self.order = random.Random(int(trial.random.integers(0, 1 << 63)))
        self._trial = trial
        self._opponent = opponent
        self._last: Walk
        self._weights_change = not (trial.needs_setup or opponent.needs_setup)
        self._verified_sets = self._how_many_verified()
        layout = trial.stock.layout
        self._most_sets = layout.sets if layout.linked else max(1, layout.sets // 2)
        self._samples = self._new_samples(self._verified_sets)
        self._candidate_ns = 0.0
        # a process that has not run the workload yet is not warm, though another of that name was: a kernel's threads
        # must be there before anything is pinned
        self._opponent_key = opponent.name, opponent.process_id
        self._opponent_ns = trial.stock.opponent_ns.get(self._opponent_key, 0.0)

    def _how_many_verified(self) -> int:
        """Many small ones, or some rows of a few."""
        if self._trial.definition.independent_axis:
            return VERIFIED_SETS_LARGE
        elements = sum(math.prod(place.layout.shape) for place in self._trial.stock.layout.inputs)
        return min(VERIFIED_SETS, max(VERIFIED_SETS_LEAST, int(self._trial.policy.verified_work) // elements))

    def prepare(self) -> None:
        """Fills all sets, lets both sides run into their stride, and learns how long a call takes."""
        trial = self._trial
        trial.plan()
        trial.stock.fill_traffic(trial.random)
        everything = np.arange(trial.stock.layout.sets, dtype=np.uint32)
        if not self._weights_change:
            trial.stock.tell_apart(everything, trial.random)
        trial.set_up(everything)
        self._opponent.plan(trial.stock)
        warm = self._pick(WARM_CALLS)
        self._renew(warm)
        self._keep_sample(self._examine(self._run(warm)))
        if not self._opponent_ns:
            self._warm_opponent()

    def _warm_opponent(self) -> None:
        """Calls until they get no faster: pairs with a side that still is would show a gain that is none."""
        before_ns = math.inf
        for _ in range(WARM_BATCHES):
            self._run_opponent(self._pick(WARM_CALLS))
            if self._opponent_ns > SETTLED * before_ns:
                return
            before_ns = self._opponent_ns

    def measure(self, candidate_first: bool) -> Pair:
        """One pair: new values, a batch for one side and then for the other, and a look at what the candidate wrote.

        Whatever is done for one side is done for the other, and their sets have none in common if there are enough, and
        never if they are large: who goes second must not find more in the caches.
        """
        trial, sizes = self._trial, []
        for per_call_ns in (self._candidate_ns, self._opponent_ns):
            sizes.append(timing.batch_size(per_call_ns, trial.policy.batch_ns, self._most_sets, self.order))
        shuffled = self._pick(trial.stock.layout.sets)
        ours, theirs = shuffled[: sizes[0]].copy(), shuffled[-sizes[1] :].copy()
        both = (ours, theirs) if self.order.random() < 0.5 else (theirs, ours)
        self._renew(shuffled if sum(sizes) >= len(shuffled) else np.concatenate(both))
        if not candidate_first:
            self._run_opponent(theirs)
        batch = self._run(ours)
        if candidate_first:
            self._run_opponent(theirs)
        looks = [lambda: self._keep_sample(self._examine(batch)), self._opponent.look_back]
        for look in looks if self.order.random() < 0.5 else looks[::-1]:
            look()
        return Pair(self._candidate_ns, self._opponent_ns, candidate_first)

    def _pick(self, count: int) -> Numbers:
        sets = self._trial.stock.layout.sets
        return self._trial.random.permutation(sets)[:count].astype(np.uint32)

    def _renew(self, numbers: Numbers) -> None:
        self._trial.stock.renew(numbers, self._trial.random, weights=self._weights_change)

    def _run(self, pool: Numbers) -> Batch:
        """One batch of the candidate, on all sets of the pool but a few."""
        calls = _called(pool)
        batch = self._trial.run(pool, calls, linked=self._trial.stock.layout.linked)
        self._candidate_ns = batch.spent_ns / calls
        return batch

    def _run_opponent(self, pool: Numbers) -> None:
        self._opponent_ns = self._opponent.run(pool, _called(pool))
        self._trial.stock.opponent_ns[self._opponent_key] = self._opponent_ns

    def _examine(self, batch: Batch) -> Walk:
        """What a batch called, if all is well at first sight."""
        finding = self._trial.examine(batch)
        if finding is not None:
            raise Finding(Status.CHEATED, f"{TIMED_WRONG}{finding.reason}")
        return batch.walk

    def _keep_sample(self, walk: Walk) -> None:
        """The calls, and what is looked at of them, are chosen now, after the batch."""
        self._last = walk
        chosen = self.order.sample(range(len(walk.called)), min(self._verified_sets, len(walk.called)))
        self._samples.take_any(walk, chosen, self.order)

    def _new_samples(self, sets: int) -> Samples:
        """Of parts, if so many whole calls are too much."""
        trial = self._trial
        elements = int(trial.policy.verified_work) // sets
        return Samples(trial.stock, trial.outputs, *part_size(trial.definition, trial.stock.workload, elements))

    def check_in_disguise(self, verification: Verification) -> None:
        """A batch like the timed ones, but that its sets hold stress values: who is careful only while calls come one
        by one is not careful in serving.

        Raises:
            Finding: something was wrong.
        """
        trial, stock = self._trial, self._trial.stock
        regimes = [regime for regime in trial.definition.regimes[1:] if self._bears_link(stock.draws(regime))]
        pool = self._pick(DISGUISED_SETS)
        if not regimes:
            return
        which = trial.random.integers(0, len(regimes), len(pool))
        counts = np.array([stock.draws(regime).count for regime in regimes])
        stock.fill_cases(regimes, which, pool, trial.random.integers(0, counts[which]))
        regime_of = np.zeros(stock.layout.sets, np.int64)
        regime_of[pool] = which
        trial.set_up(pool)
        walk = self._examine(self._run(pool))
        for index, regime in enumerate(regimes):
            held = np.flatnonzero(regime_of[walk.called] == index).tolist()
            chosen = self.order.sample(held, min(DISGUISED_VERIFIED, len(held)))  # the first calls are the careful ones
            if chosen:
                samples = self._new_samples(len(chosen))
                samples.take_any(walk, chosen, self.order)
                verification.add(trial, samples, regime)

    def _bears_link(self, draws: Draws) -> bool:
        """Whether values of a regime stay what they are when a link scales them: the very largest would overflow."""
        return draws.largest < LARGEST_LINKED or not self._trial.stock.layout.linked

    def verify(self, verification: Verification) -> None:
        """Hands over all that was kept.

        Raises:
            Finding: as `Verification.add`.
        """
        first = self._trial.definition.regimes[0]
        verification.add(self._trial, self._samples, first)
        if self._samples.in_parts:
            verification.add(self._trial, self._suspects(), first)

    def _suspects(self) -> Samples:
        """Of one call of the last batch, the places that disagree most with the engine's own kernel."""
        trial, walk = self._trial, self._last
        chosen = self.order.randrange(len(walk.called))
        one = slice(chosen, chosen + 1)
        made = trial.stock.inputs.made(walk.called[one], walk.states[one])
        part = trial.suspected(int(walk.called[chosen]), SUSPECTED_PLACES, made)
        assert part.places is not None
        samples = Samples(trial.stock, trial.outputs, part.axis, len(part.places))
        samples.take(walk, [chosen], part.places.numpy())
        return samples


def _called(pool: Numbers) -> int:
    """How many sets of a pool are called: as many on either side, since a batch costs something by itself."""
    return max(1, len(pool) - max(1, len(pool) // DECOY_SHARE))
