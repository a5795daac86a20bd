"""What can go wrong with definitions, workloads, profiles and candidates."""

from __future__ import annotations

from gristmill.errors import GristmillError


class UnknownOperatorError(GristmillError):
    """No definition has that name."""


class CandidateError(GristmillError):
    """A candidate's files or entry are not what a candidate must be."""


class WorkloadError(GristmillError):
    """A workload does not fit its operator's definition."""


class EmptyProfileError(GristmillError):
    """A traffic profile holds no workload, so nothing can be ranked or compiled."""


class ProfileVersionError(GristmillError):
    """A traffic profile was written by a release that knows more than this one."""


class SpoolObjectError(GristmillError):
    """A spool object is not what a host writes, or does not belong with the others."""


class SchemaError(GristmillError):
    """A FlashInfer-Bench document cannot be read, or says what Gristmill cannot represent (and the other way round)."""


class ModelError(GristmillError):
    """A model's configuration, or a step of it, cannot be understood."""


class DraftError(GristmillError):
    """No definition can be drafted from what was recorded."""


class DeviceProfileError(GristmillError):
    """A hardware profile does not have the form of one, contradicts another, or there is none."""


class MoeMeasurementError(GristmillError):
    """What was measured of an engine's fused experts contradicts itself."""
