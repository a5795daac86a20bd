"""What can go wrong before a command runs."""

from __future__ import annotations

from gristmill.errors import GristmillError


class EnvironmentSetupError(GristmillError):
    """The Python environment of the checkout cannot be made or used."""


class JudgeArgumentsError(GristmillError):
    """Arguments of `./mill judge` that do not go together."""


class CandidateFileError(GristmillError):
    """A file given to `./mill judge` cannot be judged."""


class BudgetArgumentsError(GristmillError):
    """`./mill budget` was asked for a search that nobody knows."""


class MemoryArgumentsError(GristmillError):
    """Arguments of `./mill memory` that do not go together."""


class ApproveArgumentsError(GristmillError):
    """Arguments of `./mill approve` that do not go together."""


class PromoteArgumentsError(GristmillError):
    """Arguments of `./mill promote` that do not go together."""


class CanaryArgumentsError(GristmillError):
    """Arguments of `./mill canary` that cannot be read."""


class KeysArgumentsError(GristmillError):
    """Arguments of `./mill keys` that do not go together."""


class ImportArgumentsError(GristmillError):
    """Arguments of `./mill import` that do not go together."""


class ModelFileError(GristmillError):
    """A file given to `./mill model` does not describe a model, or cannot be recorded."""


class WorkerArgumentsError(GristmillError):
    """`./mill worker` does not know which server to join."""


class UiArgumentsError(GristmillError):
    """Ports of `./mill ui` that do not go together."""


class DriftArgumentsError(GristmillError):
    """Arguments of `./mill drift` that name no pair."""
