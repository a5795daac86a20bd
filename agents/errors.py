"""What can go wrong with briefs, patterns, models and budgets."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from gristmill.errors import GristmillError

if TYPE_CHECKING:
    from agents.chat import Usage


class BriefError(GristmillError):
    """A brief asks for something that cannot be searched."""


class PatternError(GristmillError):
    """A pattern's parameters lie outside its space, or nobody knows the pattern."""


class BudgetSpentError(GristmillError):
    """What was to be reserved passes a cap. The search ends with the best so far."""

    def __init__(self, message: str, *, may_fit_later: bool = False) -> None:
        super().__init__(message)
        self.may_fit_later = may_fit_later
        """Whether it would fit if calls in flight turn out cheaper than what was set aside for them."""


class ModelError(GristmillError):
    """A language model gave no answer."""

    def __init__(self, message: str, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.usage = usage
        """What it cost nevertheless; None if nothing."""

    def costing(self, usage: Usage) -> ModelError:
        """The same error, for more than this call: with what all of them cost."""
        other = copy.copy(self)
        other.usage = usage
        return other

    def saying(self, message: str) -> ModelError:
        """The same error in other words."""
        other = copy.copy(self)
        other.args = (message,)
        return other


class RateLimitedError(ModelError):
    """The provider wants fewer calls, for `retry_after_s` if it said so."""

    def __init__(self, message: str, retry_after_s: float | None = None, usage: Usage | None = None) -> None:
        super().__init__(message, usage)
        self.retry_after_s = retry_after_s


class ModelUnavailableError(ModelError):
    """The provider failed, was not reached, took too long, or broke off: the same call may succeed later."""


class AnswerLostError(ModelUnavailableError):
    """The call went out, and nobody knows what came of it: it may have cost all that it can."""


class RequestRefusedError(ModelError):
    """The same call will fail again: the provider does not take it (key, model name, size), or nothing is left that
    could make it.
    """


class CapError(GristmillError):
    """A cap is no number."""


class LedgerError(GristmillError):
    """The ledger of what was spent cannot be used, so nothing may be spent."""


class ProgramError(GristmillError):
    """What a model wrote cannot become a candidate; the message is for the model."""


class ModelSettingsError(GristmillError):
    """`MILL_MODELS` or `MILL_MODELS_FILE` names models in a way that cannot be used, or nothing to run them with."""
