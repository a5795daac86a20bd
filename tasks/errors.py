"""What can go wrong while the pipeline acts on the world."""

from __future__ import annotations

from gristmill.errors import GristmillError


class SettingsError(GristmillError):
    """An environment variable or option has a value that cannot be used."""


class HardwareChoiceError(GristmillError):
    """A command means hardware that nothing was published for, or could not be done on all that it means."""


class NoProfileError(GristmillError):
    """There is no traffic profile to compile for."""


class NoWinnerError(GristmillError):
    """A search left nothing that is proven faster, so there is nothing to promote."""


class ServingError(GristmillError):
    """The serving process died or answered something that is not of its protocol."""


class ServerStartError(GristmillError):
    """A local server (object store, Prefect) did not come up, or has ended."""


class SpoolError(GristmillError):
    """The spool of a search's MLflow records cannot be used."""


class ReplayError(GristmillError):
    """What is to be replayed is not known, or means several things."""


class SearchBusyError(GristmillError):
    """Another process works on the same search."""


class WatchError(GristmillError):
    """A canary cannot be watched as it was asked for."""


class MirrorError(GristmillError):
    """MLflow's model registry could not be made to show what the channels serve."""


class RevalidationError(GristmillError):
    """A kernel that is served cannot be judged again, for its sources or its evidence are not there."""


class ClusterError(GristmillError):
    """The cluster that a flow's parts are to be spread over cannot be used."""
