"""How long the records of a registry may be: what readers refuse to read, writers refuse to write.

Both sides take the numbers from here. A record that is longer would be signed, published, and refused by every host, so
that the whole registry stood still; whoever writes one calls `checked` before anything refers to it.
"""

from __future__ import annotations

from gristmill.errors import RecordTooLargeError

MAX_ROOT_BYTES = 512_000
"""As `tuf.ngclient` allows."""
MAX_TIMESTAMP_BYTES = 16_384
MAX_METADATA_BYTES = 5_000_000
"""Of any other TUF role."""
MAX_ROOT_ROTATIONS = 256
"""How many roots may follow the installed one; with more, the host must be given a newer root to start from."""
MAX_TARGET_BYTES = 8 << 20
"""Of an index, the attestation policy and the list of what is revoked."""
MAX_SHARES_BYTES = 1 << 20
"""Of the shares of the fleets: `gristmill.cohort.CohortPolicy`."""
MAX_MANIFEST_BYTES = 8 << 20
MAX_ATTESTATION_BYTES = 1 << 20
MAX_BLOB_BYTES = 256 << 20
MAX_REPORT_BYTES = 1 << 20
MAX_WATCH_BYTES = 64 << 20
"""Of what is remembered of a canary; hosts do not read it."""
MAX_REASON_CHARS = 500
"""Of one reason in a log, a list or a report: there may be thousands in one record."""


def checked(content: bytes, most_bytes: int, what: str) -> bytes:
    """Returns a record that its readers will take.

    Raises:
        RecordTooLargeError: it is longer than `most_bytes`.
    """
    if len(content) > most_bytes:
        raise RecordTooLargeError(
            f"{what} would be {len(content)} bytes long, and its readers take {most_bytes}; nothing was published: "
            "make it shorter, or part what it holds"
        )
    return content


def one_line(text: str) -> str:
    """Text without characters that a terminal would obey: it is shown to people, and anybody may have written it."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def shortened(reason: str) -> str:
    """A reason that a program has made, in one line and cut to `MAX_REASON_CHARS`; what people write is refused when it
    is too long."""
    reason = one_line(reason)
    return reason if len(reason) <= MAX_REASON_CHARS else reason[: MAX_REASON_CHARS - 3] + "..."
