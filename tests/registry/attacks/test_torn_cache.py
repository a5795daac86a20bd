"""Every file that a real cache holds, damaged in every way, before every step: recovers, or refuses with a reason.

The files are found by walking a cache, so that a new kind of file can't be left out.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from gristmill.cache_reader import CacheReader
from gristmill.dispatch import Dispatcher
from gristmill.errors import CacheError, GristmillError, TrustError
from gristmill.generation import Generation
from gristmill.host import Host, HostEvent
from gristmill.pull import Puller
from gristmill.trust import Channel
from tests.registry.attacks.attacker import Victim
from tests.registry.world import CANARY, World

CODE = {b"code 1", b"code 2"}


def _truncate(to: Callable[[int], int]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: to(len(content))])

    return damage


def _garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * max(1, path.stat().st_size))


def _other_content(path: Path) -> None:
    """Well formed, where files are JSON, but not what it was."""
    path.write_bytes(b'{"signed": {"_type": "timestamp"}, "signatures": []}')


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_text("in the way")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(target: Callable[[Path], Path]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        to = target(path)
        path.unlink()
        path.symlink_to(to)

    return damage


def _copy_outside(path: Path) -> Path:
    """The same bytes, where they can be changed after they were verified."""
    outside = path.with_name(f"{path.name}.outside")
    outside.write_bytes(path.read_bytes())
    return outside


DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty": _truncate(lambda size: 0),
    "half": _truncate(lambda size: size // 2),
    "last byte": _truncate(lambda size: size - 1),
    "garbage": _garbage,
    "other content": _other_content,
    "missing": Path.unlink,
    "folder": _folder,
    "pipe": _pipe,
    "link to a copy": _link(_copy_outside),
    "link to itself": _link(lambda path: path),
    "link to nothing": _link(lambda path: path.with_name("nothing")),
    "link to an endless device": _link(lambda path: Path("/dev/zero")),
}


def cache_files(cache: Path) -> list[str]:
    """All files and links of a cache, and nothing left out."""
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_symlink() or not path.is_dir())


@pytest.fixture(scope="module")
def cached(template: tuple[Path, bytes]) -> Path:
    """The template's cache, with a host's name too."""
    world = World(template[0])
    cache = world.puller().cache
    with cache.locked():
        cache.host_id()
    assert {Path(name).parts[0] for name in cache_files(cache.folder)} == {
        "attestations",
        "blobs",
        "collected",
        "generations",
        "high_water.json",
        "host_id",
        "host_machine.json",
        "lock",
        "tuf",
    }
    return cache.folder


class Torn:
    """A host whose cache is damaged in one file after the other, each time whole but for that one."""

    def __init__(self, victim: Victim, cached: Path, folder: Path, count: Callable[[str, object], None]) -> None:
        self.victim, self.cached, self.folder, self._count = victim, cached, folder, count

    def restart(self) -> Puller:
        return self.victim.fresh(CANARY, self.folder)

    def reader(self) -> CacheReader:
        """An engine that may only read."""
        at, root = CANARY, self.victim.puller._root
        return CacheReader(root, at.fleet, at.model, at.hardware, at.name, self.folder)

    def names(self) -> Iterator[str]:
        """Each file in turn; between two, the cache is made what it was."""
        names = cache_files(self.cached)
        self._count("cases", len(names))
        shutil.copytree(self.cached, self.folder, symlinks=True)
        whole = {name: _state(self.folder / name) for name in names}
        for name in names:
            yield name
            if (self.folder / name).is_dir() and not (self.folder / name).is_symlink():
                shutil.rmtree(self.folder / name)
            for found in {*cache_files(self.folder), *names}:
                path = self.folder / found
                if _state(path) != whole.get(found):
                    path.unlink(missing_ok=True)
                    if found in whole:
                        shutil.copy2(self.cached / found, path, follow_symlinks=False)
        assert cache_files(self.folder) == names

    def damage(self, how: Callable[[Path], None], name: str) -> None:
        how(self.folder / name)


def _state(path: Path) -> tuple[int, ...] | None:
    """Differs once a file was written, however little."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_mode, found.st_size, 0 if path.is_symlink() else found.st_mtime_ns


@pytest.fixture
def torn(victim: Victim, cached: Path, tmp_path: Path, record_property: Callable[[str, object], None]) -> Torn:
    return Torn(victim, cached, tmp_path / "cache", record_property)


def served(generation: Generation | None) -> set[bytes]:
    """The code that a generation would load; reading it is what loading does first."""
    return set() if generation is None else {path.read_bytes() for path in generation.objects.values()}


def offline(puller: Puller | CacheReader, name: str) -> Generation | None:
    """The last good generation, whole and as it was, or one line that says why there is none."""
    try:
        generation = puller.last_good()
    except (TrustError, CacheError) as error:
        assert "\n" not in str(error), name
        assert len(str(error)) > 30, name
        return None
    if generation is None:
        assert name.startswith("generations/"), name
        return None
    assert served(generation) == CODE, name
    assert not any(path.is_symlink() for path in generation.objects.values()), name
    return generation


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
class TestEachFile:
    def test_offline_start(self, torn: Torn, damage: Callable[[Path], None]) -> None:
        """Without a store: what is handed out is whole, and a second try says the same. So for a sidecar's engines."""
        for name in torn.names():
            torn.damage(damage, name)
            offline(torn.reader(), name)
            first = offline(torn.restart(), name)
            assert offline(torn.restart(), name) == first, name

    def test_start_with_a_store(self, torn: Torn, damage: Callable[[Path], None]) -> None:
        """The first poll mends it, but for the high-water mark and the lock, which tell what to do."""
        for name in torn.names():
            torn.damage(damage, name)
            puller = torn.restart()
            before = offline(puller, name)
            try:
                found = puller.poll()
            except CacheError as error:
                assert name in ("high_water.json", "lock"), f"{name}: {error}"
                assert name in str(error)
                continue
            assert served(found or before) == CODE, name
            assert served(torn.restart().last_good()) == CODE, name
            with puller.cache.locked():
                assert puller.cache.host_id() == torn.restart().cache.host_id()

    def test_while_running(self, torn: Torn, damage: Callable[[Path], None]) -> None:
        """The file breaks between two polls: the next promotion is taken whole, or refused with a reason."""
        torn.victim.world.publish("softmax", b"code 3")
        for name in torn.names():
            puller = torn.restart()
            assert served(puller.last_good()) == CODE
            torn.damage(damage, name)
            try:
                found = puller.poll()
            except CacheError as error:
                assert name in ("high_water.json", "lock"), f"{name}: {error}"
                assert name in str(error)
                continue
            assert served(found) == {b"code 1", b"code 3"}, name

    def test_between_pull_and_load(self, torn: Torn, damage: Callable[[Path], None]) -> None:
        """What was verified at the pull and broke since is not loaded: the engine's own kernel goes on."""
        generation = None
        for name in torn.names():
            generation = generation or torn.restart().poll()
            assert generation is not None
            events: list[HostEvent] = []
            dispatcher = Dispatcher("canary", CANARY.hardware)
            site = dispatcher.site("rms_norm", torch.float32, {"hidden": 64}, (1e-6,), lambda *inputs: inputs)
            host = Host(_Once(generation), dispatcher, events.append)
            loaded = served_by(generation, "rms_norm") == torn.folder / name
            torn.damage(damage, name)
            host.poll_once()
            swap = host.boundary()
            assert swap is not None and swap.detail["entries"] == 0
            assert dispatcher.active[site.index].rows == ()
            reasons = [str(event.detail["reason"]) for event in events if event.kind == "refusal"]
            assert [event.kind for event in events] == ["refusal", "staged", "swap"], reasons
            # The loader itself takes no such code, so what it says shows that it was asked.
            assert ("restart the host" if loaded else "cannot be loaded") in reasons[0], (name, reasons)


class _Once:
    """A channel that hands out one generation."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def poll(self) -> Generation:
        return self._generation

    def last_good(self) -> None:
        return None


def served_by(generation: Generation, operator: str) -> Path:
    (table,) = (table for table in generation.tables if table.operator == operator)
    return generation.objects[table.entries[0].object.sha256]


class TestFolders:
    """What holds the files may be damaged as well."""

    @pytest.mark.parametrize("damage", ["missing", "file", "link"])
    def test_each_folder(self, victim: Victim, cached: Path, tmp_path: Path, damage: str) -> None:
        folders = sorted(str(path.relative_to(cached)) for path in cached.rglob("*") if path.is_dir())
        assert len(folders) > 8
        for number, name in enumerate(folders):
            cache = tmp_path / str(number)
            outside = tmp_path / f"outside {number}"
            outside.mkdir()
            shutil.copytree(cached, cache, symlinks=True)
            shutil.rmtree(cache / name)
            if damage == "file":
                (cache / name).write_text("in the way")
            elif damage == "link":
                (cache / name).symlink_to(outside)
            puller = victim.fresh(CANARY, cache)
            before = offline(puller, f"generations/{name}")
            try:
                found = puller.poll()
            except CacheError as error:
                assert damage == "file", error
                assert name in str(error)
                continue
            assert served(found or before) == CODE, name
            assert served(victim.fresh(CANARY, cache).last_good()) == CODE, name

    def test_one_whole_cache_in_place_of_another(self, victim: Victim, cached: Path, tmp_path: Path) -> None:
        """Another channel's cache gives this one nothing."""
        shutil.copytree(cached, tmp_path / "cache", symlinks=True)
        other = victim.fresh(Channel("stable", "chat", "llama", CANARY.hardware), tmp_path / "cache")
        assert other.last_good() is None
        source = tmp_path / "cache" / "generations" / CANARY.index_path
        target = tmp_path / "cache" / "generations" / other.channel.index_path
        target.parent.mkdir(parents=True)
        shutil.copy(source, target)
        with pytest.raises(GristmillError, match="signed metadata does not hold"):
            other.last_good()
