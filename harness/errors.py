"""What can go wrong on the judge's host. Nothing that a candidate does raises: that is a verdict."""

from __future__ import annotations

from gristmill.errors import GristmillError


class NoCompilerError(GristmillError):
    """There is no C++ compiler to build candidates with."""


class HostFaultError(GristmillError):
    """The judge's own host lacks something: memory, a runner that starts, a file that can be written."""


class BaselineError(GristmillError):
    """The baseline that a candidate is compared to does not exist or does not run."""


class CalibrationError(GristmillError):
    """The judge is wrong about kernels that are known: this host cannot measure."""


class FlagError(GristmillError):
    """A candidate asks for a compiler flag that is not on the allow-list. The judge turns it into a verdict."""
