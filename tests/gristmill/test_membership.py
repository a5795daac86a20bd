"""Membership reaches spawned processes: real workers serve with kernels, and report under names of their own."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gristmill import records
from gristmill.directory_store import DirectoryStore
from gristmill.domain import AxisRange, Domain
from gristmill.errors import GristmillError, MalformedRecordError, MembershipError
from gristmill.hardware import local_cpu
from gristmill.kernel_table import Artifact, FileRef, KernelTable, TableEntry
from gristmill.member import join
from gristmill.membership import VARIABLE, Membership, checked_worker, hand_down, inherited
from gristmill.serving.model import ModelShape, build_model
from gristmill.status_report import read_reports
from gristmill.trust import Channel
from registry.keys import create_keys
from registry.promotion import Decision
from registry.publication import publish
from registry.repository import Repository

SHAPE = ModelShape(
    layers=1, hidden=16, intermediate=16, query_heads=2, key_heads=1, head_dim=8, vocabulary=32, positions=64
)
PATIENCE_S = 120.0
FORWARDS = 4
NORMS = 2
"""Of one forward that are calls of `rms_norm`: of the layer's input and of the model's output."""


def serve(worker: str | None) -> None:
    """A spawned worker, which knows nothing but what it inherited."""
    torch.set_num_threads(1)
    model = build_model(SHAPE)
    with join(model, worker=worker) as member, torch.no_grad():
        deadline_s = time.monotonic() + PATIENCE_S
        while member.dispatcher.generation.number == 0:
            assert time.monotonic() < deadline_s, member.dispatcher.status()
            member.boundary()
            time.sleep(0.01)
        for _ in range(FORWARDS):
            model(torch.zeros((1, 3), dtype=torch.long))
            member.boundary()
            member.decoded(3, 1000)


def promote(folder: Path, shared_object: bytes) -> tuple[Membership, Channel, int]:
    """A registry with one `rms_norm` kernel on its canary."""
    at = Channel("canary", "demo", "reference", local_cpu().key)
    (folder / "store").mkdir()
    store, keyring = DirectoryStore(folder / "store"), create_keys(folder / "keys")
    (folder / "root.json").write_bytes(Repository(store, keyring).initialise())

    def ref(path: str, content: bytes) -> FileRef:
        return FileRef(path, records.sha256_hex(content), len(content))

    files = {records.sha256_hex(content): content for content in (shared_object, b"// source", b"{}")}
    entry = TableEntry(
        domain=Domain("rms_norm", "float32", (AxisRange("tokens", 1, 64),)),
        candidate=records.sha256_hex(b"// source"),
        object=ref("kernel.so", shared_object),
        needs_setup=False,
        sources=(ref("main.cpp", b"// source"),),
        ratio="2.0",
        ratio_low="1.5",
    )
    table = KernelTable("rms_norm", "float32", at.hardware, (entry,))
    artifact = Artifact(table, {"torch": "any"}, ref("evidence.json", b"{}"), "2026-12-01T00:00:00+00:00")
    done = publish(store, keyring, at, [artifact], files, lambda new, old: Decision(True, "test"))
    membership = Membership(
        at.fleet, at.model, str(folder / "root.json"), str(folder / "cache"), at.name, store.url, poll_s=0.1
    )
    return membership, at, done.number


def test_spawned_workers_serve_with_kernels_and_report_their_hits(
    tmp_path: Path, compile_kernel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    membership, at, number = promote(tmp_path, compile_kernel("rms_norm").read_bytes())
    environ: dict[str, str] = {}
    hand_down(membership, environ)
    monkeypatch.setenv(VARIABLE, environ[VARIABLE])
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=serve, args=("rank0",)), spawn.Process(target=serve, args=(None,), name="Rank:1")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE_S)
        worker.kill()
    assert [worker.exitcode for worker in workers] == [0, 0]
    reports = [received.report for received in read_reports(DirectoryStore(tmp_path / "store"), at)]
    assert [report.worker if report else None for report in reports] == ["Rank.1", "rank0"]
    for report in reports:
        assert report is not None
        counts = report.work.of("rms_norm.float32")
        assert (report.generation, report.closing, report.problem, report.refusals) == (number, True, "", ())
        assert (counts.hits, counts.fallbacks, counts.failures) == (FORWARDS * NORMS, 0, 0)
        assert report.work.decode_tokens == 3 * FORWARDS
    assert len({report.host for report in reports if report}) == 1, "one host, however many processes"


def sound(folder: Path) -> Membership:
    (folder / "root.json").write_text("{}")
    return Membership("demo", "reference", str(folder / "root.json"), str(folder / "cache"), "auto")


def test_what_is_handed_down_arrives(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    hand_down(sound(tmp_path), environ)
    assert inherited(environ) == sound(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"channel": "beta"}, "'beta'"),
        ({"poll_s": 0.0}, "poll_s 0.0"),
        ({"sample_period": 0}, "sample_period 0"),
        ({"shadow_every": -1}, "shadow_every -1"),
        ({"root_file": "nowhere/root.json"}, "nowhere/root.json: cannot be read"),
        ({"cache_dir": ""}, "cache folder"),
        ({"store": "ftp://store"}, "ftp"),
    ],
)
def test_what_cannot_work_is_not_handed_down(tmp_path: Path, change: dict[str, object], words: str) -> None:
    environ: dict[str, str] = {}
    with pytest.raises(GristmillError, match=words):
        hand_down(replace(sound(tmp_path), **change), environ)  # type: ignore[arg-type]
    assert environ == {}


def test_a_worker_that_was_handed_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(MembershipError, match="hand_down"):
        join(object(), environ={})
    with pytest.raises(MalformedRecordError, match=VARIABLE):
        inherited({VARIABLE: '{"fleet": 3}'})


def test_workers_have_names_that_reports_can_have() -> None:
    assert checked_worker("rank-0") == "rank-0"
    for name in ("a/b", "a b", ".."):
        with pytest.raises(GristmillError):
            checked_worker(name)
