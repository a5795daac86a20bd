"""The MLflow model registry mirrors the channels, after the fact, for people who review there.

It is a copy and never asked: what hosts run, and whether they may, stands in the signed registry alone. A mirror starts
from what MLflow holds and from what the registry says now. So whatever it missed, whatever killed it between two
writes, and whatever was changed by hand is put right by the next one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from gristmill.errors import GristmillError, ObjectNotFoundError
from gristmill.kernel_table import Artifact
from gristmill.store import ObjectStore
from gristmill.trust import APPROVER, CHANNELS, Channel
from registry.attestation import is_attested
from registry.entry import Entry
from registry.publication import read_manifest
from registry.repository import Repository
from tasks import mlflow_store, object_store, promotion
from tasks.channel_view import SET_TAG, Registered, Version, View, view_of
from tasks.errors import MirrorError
from tasks.mlflow_writer import outages
from tasks.settings import Settings

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

LOGGER = logging.getLogger(__name__)
DEADLINE_S = 60.0
"""After so long a mirror stops between two writes; the next one goes on."""
PATIENCE_S = 10.0
"""The same for whoever has just changed a channel, perhaps in an incident, and waits for his command to end."""
GRACE_S = 5.0
"""So much later it is left alone, whatever it waits for."""
LOCAL = "sqlite:///"
LOOKS = 5
"""How often it looks again if something was published while it wrote."""
PAGE = 500


@dataclass(frozen=True)
class Mirrored:
    """One registered model, as MLflow holds it now."""

    model: str
    aliases: dict[str, int]
    """Channel to the version that it points to."""
    versions: int
    """Of ours: sets of tables that were served."""
    writes: int
    """How many it took; 0: MLflow had all of it."""


def mirror(settings: Settings, deadline_s: float = DEADLINE_S) -> list[Mirrored]:
    """Copies the channels of this fleet and model, on all hardware.

    Raises:
        MirrorError: MLflow does not answer, refuses, or takes too long. What got through stays and is not sent again.
        StoreError, RegistryStateError: the registry can't be read.
    """
    keyring, ends_s = promotion.keyring_of(settings), time.monotonic() + deadline_s
    with object_store.opened(settings) as opened:

        def work() -> list[Mirrored]:
            repository = Repository(opened.store, keyring)
            try:
                client = mlflow_store.open_store(settings.home, settings.tracking_uri)
                return _mirrored(client, opened.store, repository, settings, ends_s)
            except outages() as error:
                raise MirrorError(
                    f"MLflow's model registry: {_first_line(error)}; the channels are not touched by that; what it "
                    "lacks is sent next time, or by: ./mill registry mirror"
                ) from error

        return _in_time(work, deadline_s)


def keep_mirror(settings: Settings) -> list[Mirrored]:
    """As `mirror`, where MLflow is in use, for whoever has just changed a channel: it fails nothing, takes
    little more than `PATIENCE_S`, and says in a line what it could not do.
    """
    if not _in_use(settings):
        return []
    try:
        return mirror(settings, PATIENCE_S)
    except GristmillError as error:
        LOGGER.warning("%s", error)
        return []


def _in_time(work: Callable[[], list[Mirrored]], deadline_s: float) -> list[Mirrored]:
    """What it returns or raises; or `MirrorError`, if it waits for too long for something that can't be interrupted."""
    ended: SimpleQueue[list[Mirrored] | BaseException] = SimpleQueue()

    def run() -> None:
        try:
            ended.put(work())
        except BaseException as error:  # whoever waits raises it
            ended.put(error)

    threading.Thread(target=run, name="mirror", daemon=True).start()
    try:
        found = ended.get(timeout=deadline_s + GRACE_S)
    except Empty:
        raise MirrorError(
            f"MLflow's model registry: it has not taken everything within {deadline_s:.0f} s; the channels are not "
            "touched by that; what it lacks is sent next time, or by: ./mill registry mirror"
        ) from None
    if isinstance(found, BaseException):
        raise found
    return found


def _views(store: ObjectStore, repository: Repository, states: Mapping[Channel, Entry]) -> list[View]:
    """What MLflow is to show of these channels."""
    views, policy, revoked = [], repository.policy(), repository.revoked()
    for hardware in sorted({channel.hardware for channel in states}):
        channels = [one for one in states if one.hardware == hardware]
        histories = {one.name: list(repository.history_from(states[one], one)) for one in channels}
        manifests = {m for states in histories.values() for one in states for m in one.index.tables.values()}
        registered = Registered(
            histories,
            {one: artifact for one in manifests if (artifact := _artifact(store, one))},
            {one for one in manifests if is_attested(store, policy, APPROVER, one)},
            revoked,
        )
        views.append(view_of(channels[0], registered))
    return views


def _artifact(store: ObjectStore, manifest_sha256: str) -> Artifact | None:
    """None if it was collected."""
    try:
        return read_manifest(store, manifest_sha256)
    except ObjectNotFoundError:
        return None


def _mirrored(
    client: MlflowClient, store: ObjectStore, repository: Repository, settings: Settings, ends_s: float
) -> list[Mirrored]:
    """Looks again if something was published meanwhile: who began earlier must not have the last word."""

    def go_on() -> None:
        if time.monotonic() > ends_s:
            raise MirrorError("MLflow's model registry: it takes too long; the next mirror goes on from here")

    writes: Counter[str] = Counter()
    for _ in range(LOOKS):
        live = repository.live()
        ours = {c: e for c, e in live.states.items() if (c.fleet, c.model) == (settings.fleet, settings.model)}
        found = [_Sender(client, view, go_on).send() for view in _views(store, repository, ours)]
        writes.update({one.model: one.writes for one in found})
        if repository.is_current(live.timestamp_etag):
            break
    return [replace(one, writes=writes[one.model]) for one in found]


class _Sender:
    """Makes MLflow show one view, with as few writes as that takes: the model, its versions, and last what points to
    them, so that nobody is pointed to a version of which something is missing.
    """

    def __init__(self, client: MlflowClient, view: View, go_on: Callable[[], None]) -> None:
        self._client = client
        self._view = view
        self._go_on = go_on
        self._writes = 0

    def send(self) -> Mirrored:
        self._send_model()
        held = self._held()
        for version in self._view.versions:
            if version.tables_sha256 not in held:
                self._create(version)
        held = self._held()
        for version in self._view.versions:
            kept, *doubles = held[version.tables_sha256]
            for double in doubles:  # of two mirrors that ran at once
                self._client.delete_model_version(self._view.name, str(double.version))
                self._wrote()
            self._mend(version, kept)
        aliases = {name: str(held[tables][0].version) for name, tables in self._view.aliases.items()}
        self._point(aliases)
        numbers = {name: int(number) for name, number in aliases.items()}
        return Mirrored(self._view.name, numbers, len(self._view.versions), self._writes)

    def _send_model(self) -> None:
        name, tags, description = self._view.name, self._view.tags, self._view.description
        found = self._client.search_registered_models(f"name = '{name}'")
        if not found:
            self._client.create_registered_model(name, tags, description)
            self._wrote()
            return
        for key in _differing(tags, found[0].tags):
            self._client.set_registered_model_tag(name, key, tags[key])
            self._wrote()
        if found[0].description != description:
            self._client.update_registered_model(name, description)
            self._wrote()

    def _held(self) -> dict[str, list[ModelVersion]]:
        """The versions that MLflow holds of each set of tables, the oldest first. They tell none of their aliases."""
        held: dict[str, list[ModelVersion]] = {}
        token = None
        while True:
            page = self._client.search_model_versions(f"name = '{self._view.name}'", PAGE, page_token=token)
            for one in page:
                held.setdefault(one.tags.get(SET_TAG, ""), []).append(one)
            token = page.token
            if not token:
                return {tables: sorted(found, key=lambda one: int(one.version)) for tables, found in held.items()}

    def _create(self, version: Version) -> None:
        source = f"gristmill:/tables/{version.tables_sha256}"  # a server takes an absolute path only
        self._client.create_model_version(
            self._view.name, source, tags=version.tags, description=version.description, await_creation_for=0
        )
        self._wrote()

    def _mend(self, version: Version, held: ModelVersion) -> None:
        for key in _differing(version.tags, held.tags):
            self._client.set_model_version_tag(self._view.name, str(held.version), key, version.tags[key])
            self._wrote()
        if held.description != version.description:
            self._client.update_model_version(self._view.name, str(held.version), version.description)
            self._wrote()

    def _point(self, wanted: Mapping[str, str]) -> None:
        """Asks for the aliases last: those of a version that was deleted went with it."""
        held = self._client.get_registered_model(self._view.name).aliases
        for alias in CHANNELS:
            if alias not in wanted and alias in held:
                self._client.delete_registered_model_alias(self._view.name, alias)
                self._wrote()
            elif alias in wanted and str(held.get(alias)) != wanted[alias]:
                self._client.set_registered_model_alias(self._view.name, alias, wanted[alias])
                self._wrote()

    def _wrote(self) -> None:
        self._writes += 1
        self._go_on()


def _differing(wanted: Mapping[str, str], held: Mapping[str, str]) -> list[str]:
    return [key for key, value in wanted.items() if held.get(key) != value]


def _in_use(settings: Settings) -> bool:
    """Whether there is a tracking server, or a search of this home has made its store."""
    uri = mlflow_store.store_uri(settings.home, settings.tracking_uri)
    return not mlflow_store.is_local(uri) or Path(uri.removeprefix(LOCAL)).exists()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
