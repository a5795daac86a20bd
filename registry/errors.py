"""What can go wrong on the publishing side."""

from __future__ import annotations

from gristmill.errors import GristmillError


class KeyFileError(GristmillError):
    """A signing key is missing, unreadable, or not the one that the registry trusts."""


class RegistryStateError(GristmillError):
    """The registry's metadata is missing, or is not what our keys have signed."""


class PublicationError(GristmillError):
    """What was to be published is incomplete or contradicts itself."""


class ConflictError(GristmillError):
    """Other promoters were faster each time; nothing was published."""


class RollbackTargetError(GristmillError):
    """There is no earlier state to go back to."""


class EmbeddedStoreError(GristmillError):
    """The embedded object store did not start or went away."""


class TableConflictError(GristmillError):
    """The measurements given for one table do not belong together."""


class PassphraseError(GristmillError):
    """A private key is encrypted, and what opens it was not given."""


class CeremonyError(GristmillError):
    """A key cannot be replaced this way; the registry trusts what it trusted before."""


class ApprovalError(GristmillError):
    """Tables were to be served that the approver has not signed."""


class CollectionError(GristmillError):
    """What may be removed from the registry cannot be told; nothing was removed."""


class RevocationError(GristmillError):
    """What was to be revoked has no name that we know; nothing was revoked."""


class StateNameError(GristmillError):
    """A name of a state names none, or more than one."""


class SupersededError(GristmillError):
    """What was judged is no longer what is current; nothing was changed."""


class ShareError(GristmillError):
    """A share of a fleet that is none."""
