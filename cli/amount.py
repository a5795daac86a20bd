"""Numbers on a command line: what is no number, or makes no sense, is refused before anything starts."""

from __future__ import annotations

import argparse
import math

SMALLEST, LARGEST = 1e-9, 1e9
"""What is further away is a slip, and no clock or device counts so far."""
MOST_DAYS = 36_500.0


def positive(text: str) -> float:
    """A number above 0, from `SMALLEST` to `LARGEST`."""
    number = _number(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number above 0")
    if number < SMALLEST:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number from {SMALLEST:g} to {LARGEST:g}")
    return number


def days(text: str) -> float:
    """As `positive`; no more than a calendar has room for."""
    number = positive(text)
    if number > MOST_DAYS:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected days, {MOST_DAYS:.0f} at most")
    return number


def not_negative(text: str) -> float:
    """A number from 0 to `LARGEST`."""
    number = _number(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number from 0 on")
    return number


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number from 1 on")
    return int(text)


def whole(text: str) -> int:
    """A whole number from 0 on, as seeds are."""
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 63):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number from 0 on")
    return int(text)


def port(text: str) -> int:
    """A TCP port that a server can listen on."""
    number = count(text)
    if number > 65_535:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a port from 1 to 65535")
    return number


def permille(text: str) -> int:
    """A percentage from 0 to 100, to a tenth, in thousandths."""
    number = _number(text.removesuffix("%")) * 10
    if not 0 <= number <= 1000 or abs(number - round(number)) > 1e-6:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a percentage from 0 to 100, to a tenth at most")
    return round(number)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number")
    if number > LARGEST:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number up to {LARGEST:g}")
    return number
