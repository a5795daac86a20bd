"""What can go wrong on the fleet side. Every message says what, where, what was expected, what to do."""

from __future__ import annotations


class GristmillError(Exception):
    """A fault that its reader can mend: shown as one line, exit code 2, without a traceback.

    Anything else that escapes is a bug and keeps its traceback.
    """

    exit_code = 2


class MalformedRecordError(GristmillError):
    """A file, message or object does not have the form its schema demands."""


class DomainError(GristmillError):
    """A domain contradicts itself, so that no workload could ever match it."""
