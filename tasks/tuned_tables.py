"""Tuned tables: what was measured of an engine's fused experts becomes an artifact, and goes the way of all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gristmill import records, tuned_table
from gristmill.domain import AxisRange, Domain
from gristmill.errors import MalformedRecordError
from gristmill.kernel_table import Artifact, FileRef, KernelTable, TableEntry
from gristmill.store import ObjectStore
from kernels import moe_tuning
from kernels.errors import MoeMeasurementError
from kernels.moe_tuning import MoeMeasurement, RangeGain
from kernels.profile import TrafficProfile
from registry.failures import why_failed
from registry.promotion import Decision, decide_table
from registry.publication import Published, publish
from tasks import object_store
from tasks.errors import NoWinnerError
from tasks.promotion import approve_alone, channel_of, failed_in_canary, file_ref, keyring_of, policy_approves
from tasks.settings import Settings
from tasks.traffic import latest_profile

EVIDENCE = "measurements.json"


def form_artifact(
    measurements: Sequence[MoeMeasurement], settings: Settings, traffic: TrafficProfile
) -> tuple[Artifact, dict[str, bytes]]:
    """The artifact of all files of one dtype, and the files that it names.

    Raises:
        MoeMeasurementError: a measurement contradicts itself.
        NoWinnerError: nothing of what the fleet calls is faster; or they are of other hardware, versions or dtypes.
    """
    named = {(one.hardware, one.dtype, records.sorted_json(one.versions)) for one in measurements}
    if len(named) != 1 or measurements[0].hardware != settings.hardware:
        raise NoWinnerError(
            f"tuned tables: expected measurements of one dtype and set of versions on {settings.hardware}"
        )
    counts = moe_tuning.token_counts(traffic)
    files: dict[str, bytes] = {}
    entries: list[TableEntry] = []
    for measurement in measurements:
        claimed = moe_tuning.gains(measurement, counts)
        if claimed:
            made = file_ref(
                tuned_table.OBJECT, records.canonical_json(moe_tuning.tuned_file(measurement, claimed)), files
            )
            entries += [_entry(measurement, one, made) for one in claimed]
    if not entries:
        measured = sum(len(one.rows) for one in measurements)
        raise NoWinnerError(
            f"tuned tables: of {measured} measured numbers of tokens none is both faster beyond doubt and called by "
            f"the fleet, which calls {len(counts)}"
        )
    table = KernelTable(tuned_table.OPERATOR, measurements[0].dtype, settings.hardware, tuple(entries))
    evidence = file_ref(EVIDENCE, records.canonical_json(list(measurements)), files)
    return Artifact(
        table, dict(measurements[0].versions), evidence, max(one.measured_utc for one in measurements)
    ), files


def publish_tuned(
    store: ObjectStore,
    settings: Settings,
    channel_name: str,
    measurements: Sequence[MoeMeasurement],
    traffic: TrafficProfile,
    again: bool = False,
) -> tuple[Published, Artifact]:
    """Publishes what passes the gate against what is current, and returns the artifact too. Safe to repeat; errors as
    `form_artifact`.

    Args:
        again: take configurations that failed in canary too, because a person says so.
    """
    artifact, files = form_artifact(measurements, settings, traffic)
    failed = {} if again else failed_in_canary(store, settings)

    def decide(new: Artifact, current: Artifact | None) -> Decision:
        why = why_failed(new.table, failed)
        if why is not None:
            return Decision(False, why)
        outdated = current is not None and current.environment != new.environment
        return decide_table(new.table, current.table if current is not None and not outdated else None)

    keyring = keyring_of(settings)
    approve = approve_alone if policy_approves(settings, keyring) else None
    channel = channel_of(settings, channel_name)
    return publish(store, keyring, channel, [artifact], files, decide, "tuned for the traffic", approve), artifact


def read(paths: Sequence[Path]) -> tuple[MoeMeasurement, ...]:
    """Measurements from their files.

    Raises:
        MoeMeasurementError: one cannot be read, or is none.
    """
    found = []
    for path in paths:
        try:
            with path.open("rb") as file:
                content = file.read(tuned_table.MOST_BYTES)
            found.append(records.parse(MoeMeasurement, content, str(path)))
        except OSError as error:
            raise MoeMeasurementError(f"{path}: {error.strerror or error}; name files of measurements") from None
        except (MalformedRecordError, UnicodeDecodeError) as error:
            raise MoeMeasurementError(f"{error}; name files of measurements") from None
    return tuple(found)


def promote(
    settings: Settings, channel_name: str, measurements: Sequence[MoeMeasurement], again: bool = False
) -> tuple[Published, Artifact]:
    """Publishes measurements for the traffic that was captured on their hardware, from whichever machine.

    Raises:
        GristmillError: as `form_artifact`; nothing was captured there; or as `registry.publication.publish`.
    """
    settings = replace(settings, hardware=measurements[0].hardware)
    with object_store.opened(settings) as opened:
        traffic = latest_profile(opened.store, settings)
        return publish_tuned(opened.store, settings, channel_name, measurements, traffic, again)


def _entry(measurement: MoeMeasurement, gain: RangeGain, made: FileRef) -> TableEntry:
    axes = [AxisRange(name, extent, extent) for name, extent in sorted(measurement.axes.items())]
    tokens = AxisRange(tuned_table.TOKENS, gain.range.low, gain.range.high)
    return TableEntry(
        domain=Domain(tuned_table.OPERATOR, measurement.dtype, (*axes, tokens)),
        candidate=records.digest([measurement.file_name, measurement.versions, gain.range]),
        object=made,
        needs_setup=False,
        sources=(),
        ratio=f"{gain.ratio:.4f}",
        ratio_low=f"{gain.ratio_low:.4f}",
    )
