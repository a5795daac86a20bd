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


class StoreError(GristmillError):
    """An object store did not do what was asked of it."""


class StoreAddressError(StoreError):
    """The address of a store, or a key in it, does not have a form that can be used."""


class ObjectNotFoundError(StoreError):
    """The store has no object under that key."""


class ObjectExistsError(StoreError):
    """An immutable key already holds other bytes."""


class PreconditionFailedError(StoreError):
    """The object is no longer the one that was read: somebody else was first. Read again and decide again."""


class ObjectTooLargeError(StoreError):
    """An object is longer than its reader allows."""


class RecordTooLargeError(GristmillError):
    """A record would be longer than its readers allow; it was not written."""


class StoreUnreachableError(StoreError):
    """Nothing answered at the store's address, or not in time."""


class StoreAccessError(StoreError):
    """The store refused the credentials, or what they may do."""


class MissingBucketError(StoreError):
    """The store answers, but the bucket or folder does not exist."""


class StoreFullError(StoreError):
    """The store has no room left."""


class UnconditionalStoreError(StoreError):
    """The store ignores conditions on puts, so that concurrent promotions would overwrite each other."""


class TrustError(GristmillError):
    """Something from the registry or the cache is not what its signatures promise; it is not used."""


class RollbackError(TrustError):
    """The registry offers an older state than this host has already seen."""


class StaleRegistryError(TrustError):
    """The registry's signed statement of what is current has expired."""


class CacheError(GristmillError):
    """The host's cache can't be written or locked."""


class SidecarError(GristmillError):
    """The process that fills this engine's cache is gone, or cannot poll."""


class NativeKernelError(GristmillError):
    """A shared object does not export what the C ABI demands, or refused its setup phase."""


class InconsistentGenerationError(GristmillError):
    """A generation whose tables contradict each other or its host; nothing of it is used."""

    def __init__(self, operator: str, message: str) -> None:
        super().__init__(message)
        self.operator = operator


class MembershipError(GristmillError):
    """A process was not told which fleet it belongs to, or by something that cannot be."""


class EngineError(GristmillError):
    """The engine or model is not one that the adapter was written for."""


class TraceError(GristmillError):
    """A request trace has a row that cannot be read."""


class SpoolError(GristmillError):
    """Samples cannot be written."""


class ServingError(GristmillError):
    """The reference engine was asked for something it cannot do."""
