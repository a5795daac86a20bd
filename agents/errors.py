"""What can go wrong with briefs, patterns and the agents that use them."""

from __future__ import annotations

from gristmill.errors import GristmillError


class BriefError(GristmillError):
    """A brief asks for something that cannot be searched."""


class PatternError(GristmillError):
    """A pattern's parameters lie outside its space, or nobody knows the pattern."""
