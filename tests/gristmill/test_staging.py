"""Staging: one bad entry costs that entry, a generation that contradicts itself is not used at all."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gristmill import sealed_object
from gristmill.dispatch import Dispatcher
from gristmill.domain import AxisRange, Domain
from gristmill.generation import Generation
from gristmill.hardware import describe_gpu
from gristmill.hook import Hook, Instruments
from gristmill.kernel_table import FileRef, TableEntry
from gristmill.site import Site
from gristmill.staging import StagedGeneration, extents_of

MakeEntry = Callable[..., tuple[TableEntry, Path]]
MakeGeneration = Callable[..., Generation]
HIDDEN = 32
EPS = 1e-5
GOOD_ROWS, BAD_ROWS = 12, 4


def norm(x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float) -> tuple[torch.Tensor, ...]:
    return (torch.nn.functional.rms_norm(x_TH, (x_TH.shape[-1],), weight_H, eps),)


class Engine:
    """One norm, checked at every call."""

    def __init__(self, hardware: str = "") -> None:
        self.dispatcher = Dispatcher("stable", hardware, environ={})
        site = self.dispatcher.site("rms_norm", torch.float32, {"hidden": HIDDEN}, (EPS,), norm)
        self._call = Hook(Instruments(self.dispatcher, None), site).call

    @torch.no_grad()
    def norm(self, rows: int) -> None:
        x_TH, weight_H = torch.randn(rows, HIDDEN), torch.rand(HIDDEN)
        torch.testing.assert_close(self._call(x_TH, weight_H), norm(x_TH, weight_H, EPS))


def missing(entry: TableEntry, path: Path) -> None:
    path.unlink()


def damaged(entry: TableEntry, path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"!")


@pytest.mark.parametrize(
    ("spoil", "macro", "reason"),
    [
        (None, "WRONG_AFTER=0", "elements differ"),
        (None, "REFUSE_AFTER=0", "gm_run returned 7"),
        (missing, "", "No such file"),
        (damaged, "", "changed since it was verified"),
    ],
)
def test_a_bad_entry_costs_itself_alone(
    make_entry: MakeEntry,
    make_generation: MakeGeneration,
    spoil: Callable[[TableEntry, Path], None] | None,
    macro: str,
    reason: str,
) -> None:
    engine = Engine()
    bad = make_entry("rms_norm", 1, 8, *filter(None, [macro]))
    good = make_entry("rms_norm", 9, 16)
    if spoil is not None:
        spoil(*bad)
    (refusal,) = engine.dispatcher.stage(make_generation(1, bad, good))
    assert (refusal.candidate, refusal.whole) == (bad[0].candidate, False)
    assert reason in refusal.reason
    swap = engine.dispatcher.step_boundary()
    assert swap is not None and swap.entries == 1
    engine.norm(BAD_ROWS)
    engine.norm(GOOD_ROWS)
    status = engine.dispatcher.status()
    assert [(entry["candidate"], entry["hits"]) for entry in status["entries"]] == [(good[0].candidate, 1)]
    assert status["fallbacks"] == {"rms_norm.float32": 1}
    assert [told["candidate"] for told in status["refusals"]] == [bad[0].candidate]


def test_an_object_that_no_host_was_given(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    generation = make_generation(1, make_entry("rms_norm", 1, 8))
    generation.objects.clear()
    assert "missing in the cache" in Engine().dispatcher.stage(generation)[0].reason


def test_a_generation_of_bad_entries_leaves_all_to_the_engine(
    make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    """The kernels before it were taken back by whoever promoted this one: they must not come back by accident."""
    engine = Engine()
    assert engine.dispatcher.stage(make_generation(1, make_entry("rms_norm", 1, 8))) == ()
    engine.dispatcher.step_boundary()
    assert engine.dispatcher.stage(make_generation(2, make_entry("rms_norm", 1, 8, "WRONG_AFTER=0")))
    engine.dispatcher.step_boundary()
    engine.norm(BAD_ROWS)
    assert (engine.dispatcher.generation.number, engine.dispatcher.status()["entries"]) == (2, [])


@pytest.mark.parametrize("macro", ["WRONG_AFTER=0", "REFUSE_AFTER=0"])
def test_code_that_was_wrong_is_not_tried_again_under_another_table(
    make_entry: MakeEntry, make_generation: MakeGeneration, macro: str
) -> None:
    engine = Engine()
    entry, path = make_entry("rms_norm", 1, 8, macro)
    engine.dispatcher.stage(make_generation(1, (entry, path)))
    anew = replace(entry, candidate="f" * 64, domain=replace(entry.domain, ranges=(AxisRange("tokens", 1, 16),)))
    (refusal,) = engine.dispatcher.stage(make_generation(2, (anew, path)))
    assert refusal.reason.startswith("has failed in this process before: smoke test ")
    assert Engine().dispatcher.stage(make_generation(2, (anew, path)))[0].reason.startswith("smoke test "), "told once"


def test_what_could_not_be_loaded_is_tried_again(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    """The cache may have been mended meanwhile; nothing is known of the code."""
    engine = Engine()
    entry, path = make_entry("rms_norm", 1, 8)
    content = path.read_bytes()
    path.unlink()
    assert engine.dispatcher.stage(make_generation(1, (entry, path)))
    path.write_bytes(content)
    assert engine.dispatcher.stage(make_generation(2, (entry, path))) == ()


def overlapping(sound: Generation, make_entry: MakeEntry, make_generation: MakeGeneration) -> Generation:
    return make_generation(2, make_entry("rms_norm", 1, 8), make_entry("rms_norm", 8, 9))


def twice(sound: Generation, make_entry: MakeEntry, make_generation: MakeGeneration) -> Generation:
    return replace(sound, tables=sound.tables * 2)


def of_other_hardware(sound: Generation, make_entry: MakeEntry, make_generation: MakeGeneration) -> Generation:
    return replace(sound, tables=tuple(replace(table, hardware="another") for table in sound.tables))


def of_another_host(sound: Generation, make_entry: MakeEntry, make_generation: MakeGeneration) -> Generation:
    return replace(of_other_hardware(sound, make_entry, make_generation), hardware="another")


def with_and_without_setup(sound: Generation, make_entry: MakeEntry, make_generation: MakeGeneration) -> Generation:
    (entry,) = sound.tables[0].entries
    ranges = (AxisRange("tokens", 9, 16),)
    other = replace(entry, needs_setup=True, domain=Domain("rms_norm", "float32", ranges))
    return replace(sound, tables=(replace(sound.tables[0], entries=(entry, other)),))


def with_a_stranger(sound: Generation, make_entry: MakeEntry, make_generation: MakeGeneration) -> Generation:
    stranger, path = make_entry("rotary_embedding", 1, 8)
    table = replace(sound.tables[0], entries=(*sound.tables[0].entries, stranger))
    return replace(sound, tables=(table,), objects={**sound.objects, stranger.object.sha256: path})


@pytest.mark.parametrize(
    "spoiled", [overlapping, twice, of_other_hardware, of_another_host, with_a_stranger, with_and_without_setup]
)
def test_a_generation_that_contradicts_itself_changes_nothing(
    make_entry: MakeEntry,
    make_generation: MakeGeneration,
    spoiled: Callable[[Generation, MakeEntry, MakeGeneration], Generation],
) -> None:
    engine = Engine("test-hardware")
    assert engine.dispatcher.stage(make_generation(1, make_entry("rms_norm", 1, 8))) == ()
    engine.dispatcher.step_boundary()
    generation = spoiled(make_generation(2, make_entry("rms_norm", 1, 8)), make_entry, make_generation)
    (refusal,) = engine.dispatcher.stage(generation)
    assert (refusal.generation, refusal.operator, refusal.whole) == (2, "rms_norm", True)
    assert engine.dispatcher.step_boundary() is None
    engine.norm(4)
    (entry,) = engine.dispatcher.status()["entries"]
    assert (engine.dispatcher.generation.number, entry["hits"]) == (1, 1)


def test_a_table_for_one_architecture_is_not_taken_by_its_neighbour(
    make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    b200, b300 = describe_gpu("NVIDIA B200", "sm_100"), describe_gpu("NVIDIA B200", "sm_103")
    made = make_generation(1, make_entry("rms_norm", 1, 8))
    made = replace(made, hardware="", tables=tuple(replace(table, hardware=b200.key) for table in made.tables))
    neighbour = Engine(b300.key)
    (refusal,) = neighbour.dispatcher.stage(made)
    assert refusal.whole and "is for sm_100-NVIDIA_B200, not sm_103-NVIDIA_B200" in refusal.reason
    assert neighbour.dispatcher.step_boundary() is None
    engine = Engine(b200.key)
    assert engine.dispatcher.stage(made) == ()


def test_a_site_made_late_may_be_the_one_that_finds_a_contradiction(
    make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    engine = Engine()
    good = make_entry("rms_norm", 1, 8, hidden=HIDDEN)
    assert (
        engine.dispatcher.stage(make_generation(1, good, *(make_entry("rms_norm", 1, 8, hidden=16) for _ in range(2))))
        == ()
    )
    engine.dispatcher.step_boundary()
    late = engine.dispatcher.site("rms_norm", torch.float32, {"hidden": 16}, (EPS,), norm)
    engine.norm(4)
    assert engine.dispatcher.active[late.index].rows == ()
    assert [refusal.whole for refusal in engine.dispatcher.refusals] == [True]
    assert engine.dispatcher.hits() == {good[0].candidate: 1}


ranges = st.builds(
    lambda low, span, multiple: (low, low + span, multiple),
    st.integers(0, 300),
    st.integers(0, 300),
    st.integers(1, 40),
)


@given(ranges, st.integers(1, 700))
def test_lookup_agrees_with_the_domain(limits: tuple[int, int, int], extent: int) -> None:
    low, high, multiple = limits
    domain = Domain("rms_norm", "float32", (AxisRange("tokens", low, high, multiple), AxisRange("hidden", 8, 16)))
    entry = TableEntry(domain, "c", FileRef("o", "0", 0), False, (), "1", "1")
    for hidden in (4, 12):
        site = Dispatcher(environ={}).site("rms_norm", torch.float32, {"hidden": hidden}, (EPS,), norm)
        found = extent in extents_of(entry, site)
        assert found == domain.admits_axes({"tokens": extent, "hidden": hidden})


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), MemoryError(), AttributeError("_packed_bytes")])
def test_whatever_an_entry_brings_about_costs_it_alone(
    make_entry: MakeEntry, make_generation: MakeGeneration, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    engine, bad, good = Engine(), make_entry("rms_norm", 1, 8), make_entry("rms_norm", 9, 16)
    load = sealed_object.load

    def fail_once(path: Path, sha256: str = "") -> ctypes.CDLL:
        if path == bad[1]:
            raise error
        return load(path, sha256)

    monkeypatch.setattr(sealed_object, "load", fail_once)
    (refusal,) = engine.dispatcher.stage(make_generation(1, bad, good))
    assert refusal.candidate == bad[0].candidate and type(error).__name__ in refusal.reason
    engine.dispatcher.step_boundary()
    engine.norm(GOOD_ROWS)
    assert engine.dispatcher.hits() == {good[0].candidate: 1}


class TestTakenBack:
    """What a generation does not hold stops, also where the generation cannot be staged."""

    @pytest.fixture
    def kernels(self, make_entry: MakeEntry) -> list[tuple[TableEntry, Path]]:
        return [make_entry("rms_norm", 1, 8), make_entry("rms_norm", 9, 16)]

    def test_if_staging_fails_all_that_is_gone(
        self,
        kernels: list[tuple[TableEntry, Path]],
        make_entry: MakeEntry,
        make_generation: MakeGeneration,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        engine = Engine()
        engine.dispatcher.stage(make_generation(1, *kernels))
        engine.dispatcher.step_boundary()

        def fail(self: StagedGeneration, *sites: Site) -> None:
            raise RuntimeError("a bug")

        with monkeypatch.context() as patched:
            patched.setattr(StagedGeneration, "add", fail)
            with pytest.raises(RuntimeError):
                engine.dispatcher.stage(make_generation(2, kernels[1], make_entry("rms_norm", 1, 8)))
        engine.norm(BAD_ROWS)
        engine.norm(GOOD_ROWS)
        assert engine.dispatcher.hits() == {kernels[0][0].candidate: 0, kernels[1][0].candidate: 1}
        assert engine.dispatcher.stage(make_generation(3, *kernels)) == ()
        engine.dispatcher.step_boundary()
        engine.norm(BAD_ROWS)
        assert engine.dispatcher.hits()[kernels[0][0].candidate] == 1

    def test_a_table_that_is_gone_before_anything_is_loaded(
        self,
        kernels: list[tuple[TableEntry, Path]],
        make_entry: MakeEntry,
        make_generation: MakeGeneration,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        engine, seen = Engine(), []
        engine.dispatcher.stage(make_generation(1, *kernels))
        engine.dispatcher.step_boundary()
        add = StagedGeneration.add

        def look(self: StagedGeneration, *sites: Site) -> None:
            seen.extend(entry["disabled_because"] for entry in engine.dispatcher.status()["entries"])
            add(self, *sites)

        monkeypatch.setattr(StagedGeneration, "add", look)
        engine.dispatcher.stage(make_generation(2, make_entry("rotary_embedding", 1, 8)))
        assert set(seen) == {"taken back by generation 2"}

    def test_a_replaced_kernel_serves_until_the_new_one_is_there(
        self, kernels: list[tuple[TableEntry, Path]], make_entry: MakeEntry, make_generation: MakeGeneration
    ) -> None:
        engine = Engine()
        engine.dispatcher.stage(make_generation(1, *kernels))
        engine.dispatcher.step_boundary()
        engine.dispatcher.stage(make_generation(2, make_entry("rms_norm", 1, 16)))
        engine.norm(BAD_ROWS)
        assert engine.dispatcher.hits()[kernels[0][0].candidate] == 1
