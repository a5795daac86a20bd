"""The spool of a few hosts, folded by `./mill capture` in a process of its own: it holds what they counted."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest

from benchmarks import profile_fold
from benchmarks.figures import Outcome
from benchmarks.profile_fold import Folded, figures, write_spool
from cli.progress import ProgressLine
from gristmill.directory_store import DirectoryStore
from gristmill.sampler import DEFAULT_PERIOD
from gristmill.store import read
from kernels import spool_fold

pytest.importorskip("pyarrow")


def test_a_spool_of_hosts_folds_to_what_they_counted(tmp_path: Path) -> None:
    spooled = write_spool(tmp_path, 3, 2, 6000, ProgressLine(io.StringIO()))
    assert spooled.calls == pytest.approx(6000 * DEFAULT_PERIOD, rel=0.1)
    assert spooled.timed_calls == pytest.approx(6000, rel=0.2)
    store = DirectoryStore(tmp_path / "store")
    keys = list(store.list("spool/"))
    assert len(keys) == spooled.objects
    assert len({key.rsplit("/", 1)[-1].split("-")[1] for key in keys}) == 3, "hosts have names of their own"
    profile = spool_fold.fold((key, read(store, key)) for key in keys)
    met = figures(spooled, Folded(59.0, 0.9, 1 << 19, profile))
    assert [row.verdict for row in met] == [Outcome.MET] * 3
    missed = figures(spooled, Folded(61.0, 1.1, 1 << 21, profile))
    assert [row.verdict for row in missed] == [Outcome.MISSED] * 3
    with pytest.raises(AssertionError):
        figures(dataclasses.replace(spooled, calls=spooled.calls + 1), Folded(1.0, 0.1, 1, profile))


def test_it_counts_only_with_all_hosts() -> None:
    assert (profile_fold.HOSTS, profile_fold.SAMPLED_CALLS) == (100, 10_000_000)
