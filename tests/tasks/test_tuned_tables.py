"""Tuned tables go the way of all artifacts: gated, signed, pulled, verified, put in place, revoked, expired."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gristmill import records, tuned_table
from gristmill.adapters import vllm_tuned
from gristmill.adapters.vllm_tuned import FOLDER, install
from gristmill.directory_store import DirectoryStore
from gristmill.errors import GristmillError
from gristmill.hardware import describe_gpu
from gristmill.membership import Membership
from gristmill.pull import Puller
from kernels.errors import MoeMeasurementError
from kernels.moe_tuning import MoeMeasurement
from registry.publication import Published
from registry.repository import Repository
from registry.revocation import revoke
from tasks import promotion, revalidation, traffic
from tasks.errors import NoWinnerError
from tasks.settings import Settings
from tasks.tuned_tables import form_artifact, promote, publish_tuned, read
from tests.kernels.test_moe_tuning import B, measurement, row
from tests.registry.world import shared_keys
from tests.tasks.world import profile, rms_norm, settings

H200 = describe_gpu("NVIDIA H200", "sm_90")
TRAFFIC = replace(profile(rms_norm(1), rms_norm(64)), hardware=H200.key)
MEASURED = measurement(row(1), row(2), row(64, B, ratio=1.3))
VERSIONS = MEASURED.versions


class Fleet:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings: Settings = replace(settings(folder / "home", folder / "store"), hardware=H200.key)
        shutil.copytree(shared_keys(), self.settings.keys_dir)
        self.store = DirectoryStore(folder / "store")
        self.repository = Repository(self.store, promotion.keyring_of(self.settings))

    def publish(self, *measured: MoeMeasurement, channel: str = "canary") -> Published:
        return publish_tuned(self.store, self.settings, channel, measured, TRAFFIC)[0]

    def puller(self, channel: str = "canary") -> Puller:
        root = self.repository.initialise()
        at = (root, "chat", "tiny", H200.key, channel, self.folder / "cache")
        return Puller(self.store, *at, lambda: tuned_table.NAMES)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def keys_in(folder: Path) -> dict[int, dict[str, int]]:
    read = json.loads((folder / MEASURED.file_name).read_text())
    return {int(tokens): configuration for tokens, configuration in read.items()}


def looked_up(keys: dict[int, dict[str, int]], tokens: int) -> dict[str, int]:
    return keys[min(keys, key=lambda key: abs(key - tokens))]


def test_it_reaches_a_host_through_the_registry(fleet: Fleet) -> None:
    published = fleet.publish(MEASURED)
    assert set(published.manifests) == {"vllm_fused_moe.unquantised"} and not published.declined
    generation = fleet.puller().poll()
    assert generation is not None
    assert install(generation, fleet.folder / FOLDER, VERSIONS) == ()
    keys = keys_in(fleet.folder / FOLDER)
    assert looked_up(keys, 2) == row(2).configuration and looked_up(keys, 64) == B
    baseline = {key.tokens: key.configuration for key in MEASURED.baseline}
    for tokens in (3, 30, 63, 65, 2000, 2048, 2049, 4096, 10**6):
        assert looked_up(keys, tokens) == looked_up(baseline, tokens), tokens


def test_stable_has_it_once_it_is_approved(fleet: Fleet) -> None:
    fleet.publish(MEASURED, channel="stable")
    generation = fleet.puller("stable").poll()
    assert generation is not None and len(generation.tables) == 1


def test_a_weaker_table_does_not_replace_it_and_one_for_other_versions_does(fleet: Fleet) -> None:
    first = fleet.publish(MEASURED)
    weaker = replace(MEASURED, rows=(row(1, ratio=1.2), row(64, B, ratio=1.2)))
    assert "gain over all ranges" in fleet.publish(weaker).declined["vllm_fused_moe.unquantised"]
    newer = replace(weaker, versions={"vllm": "0.33.0", "triton": "3.9.0"})
    assert fleet.publish(newer).number > first.number


def test_again_changes_nothing(fleet: Fleet) -> None:
    assert fleet.publish(MEASURED).manifests == fleet.publish(MEASURED).manifests


def test_a_range_that_is_revoked_is_the_engine_s_again(fleet: Fleet) -> None:
    fleet.publish(MEASURED)
    puller = fleet.puller()
    assert puller.poll() is not None
    artifact, _ = form_artifact([MEASURED], fleet.settings, TRAFFIC)
    (last,) = [entry for entry in artifact.table.entries if entry.domain.ranges[-1].low == 64]
    revoke(fleet.store, promotion.keyring_of(fleet.settings), last.candidate, "slow")
    generation = fleet.puller().poll()
    assert generation is not None
    assert install(generation, fleet.folder / FOLDER, VERSIONS) == ()
    keys = keys_in(fleet.folder / FOLDER)
    assert looked_up(keys, 64) == MEASURED.baseline[0].configuration
    assert looked_up(keys, 2) == row(2).configuration


def test_nothing_to_gain_is_no_artifact(fleet: Fleet) -> None:
    with pytest.raises(NoWinnerError, match="none is both faster beyond doubt and called"):
        form_artifact([replace(MEASURED, rows=(row(2, ratio=1.05), row(512)))], fleet.settings, TRAFFIC)


@pytest.mark.parametrize("other", [{"hardware": "sm_100-NVIDIA_B200"}, {"dtype": "fp8_w8a8"}, {"versions": {}}])
def test_what_does_not_belong_together_is_no_artifact(fleet: Fleet, other: dict[str, object]) -> None:
    with pytest.raises(NoWinnerError, match="expected measurements of one dtype"):
        form_artifact([MEASURED, replace(MEASURED, **other)], fleet.settings, TRAFFIC)


def test_several_files_are_one_table(fleet: Fleet) -> None:
    half = replace(MEASURED, file_name=MEASURED.file_name.replace("14336", "7168"))
    half = replace(half, axes={**MEASURED.axes, "intermediate": 7168})
    fleet.publish(MEASURED, half)
    generation = fleet.puller().poll()
    assert generation is not None
    assert install(generation, fleet.folder / FOLDER, VERSIONS) == ()
    assert len(list((fleet.folder / FOLDER).iterdir())) == 2


def test_it_expires_with_the_versions_of_engine_and_triton_and_the_judge_leaves_it_alone(fleet: Fleet) -> None:
    fleet.publish(MEASURED)
    (serving,) = revalidation.serving(fleet.store, fleet.settings)
    now = datetime.fromisoformat(TRAFFIC.window_end_utc) + timedelta(hours=1)
    runs = {**VERSIONS, "torch": "2.13.0"}
    assert revalidation.why_expired(serving.artifact, replace(TRAFFIC, versions=runs), 30.0, now) == ""
    for package in ("vllm", "triton"):
        upgraded = replace(TRAFFIC, versions={**runs, package: "9.0"})
        assert f"proven with {package}" in revalidation.why_expired(serving.artifact, upgraded, 30.0, now)
    assert revalidation.due(fleet.settings, [serving], 4, datetime.now(UTC)) == ()


def test_an_engine_that_starts_has_it_in_place_and_is_pointed_there(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.publish(MEASURED)
    root = fleet.folder / "root.json"
    root.write_bytes(fleet.repository.initialise())
    cache = fleet.folder / "cache"
    membership = Membership("chat", "tiny", str(root), str(cache), "canary", f"file://{fleet.folder / 'store'}")
    monkeypatch.setattr(vllm_tuned, "installed_versions", lambda _: VERSIONS)
    monkeypatch.setattr(vllm_tuned, "local_gpu", lambda: None)
    environ: dict[str, str] = {}
    vllm_tuned.follow(membership, environ)
    assert environ == {}
    monkeypatch.setattr(vllm_tuned, "local_gpu", lambda: H200)
    vllm_tuned.follow(membership, environ)
    assert environ == {vllm_tuned.VARIABLE: str(cache / FOLDER)}
    assert looked_up(keys_in(cache / FOLDER), 64) == B
    shutil.rmtree(fleet.folder / "store")
    again: dict[str, str] = {}
    vllm_tuned.follow(membership, again)
    assert again == environ, "the last good generation serves without a store"
    assert looked_up(keys_in(cache / FOLDER), 64) == B


def test_files_of_measurements_are_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    path.write_bytes(records.canonical_json(MEASURED))
    assert read([path]) == (MEASURED,)
    for content in (b"[]", b"{", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(MoeMeasurementError, match=r"measured\.json.*name files of measurements"):
            read([path])
    with pytest.raises(MoeMeasurementError, match="No such file"):
        read([tmp_path / "none"])


def test_a_machine_without_that_gpu_publishes_for_those_that_have_it(fleet: Fleet) -> None:
    elsewhere = replace(fleet.settings, hardware="another")
    with pytest.raises(GristmillError, match="no traffic profile"):
        promote(elsewhere, "canary", [MEASURED])
    traffic.keep_profile(fleet.store, fleet.settings, TRAFFIC)
    published, artifact = promote(elsewhere, "canary", [MEASURED])
    assert published.channel.hardware == H200.key
    assert [entry.ratio_low for entry in artifact.table.entries] == ["1.4000", "1.2000"]
