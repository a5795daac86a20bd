"""The catalogue of layers covers what a sandbox reports, and what is missing is said to be missing."""

from __future__ import annotations

from harness import layers, sandbox
from harness.sandbox import Confinement


def test_every_layer_that_is_reported_is_explained():
    process = sandbox.start(Confinement(), argv=("/bin/true",))
    process.wait_ready()
    process.close()
    known = {layer.name: layer for layer in layers.LAYERS}
    assert set(process.isolation) <= set(known)
    assert all(layer.meaning and layer.remedy for layer in known.values())
    assert {one.layer.name for one in layers.examine() if one.active} == set(process.isolation)


def test_what_the_host_refuses_is_reported_absent(monkeypatch):
    """A stand-in for the host's answer only: everything else is the real examination."""

    class Bare(sandbox.Sandboxed):
        @property
        def isolation(self) -> tuple[str, ...]:
            return tuple(name for name in super().isolation if name not in ("landlock", "own user", "memory group"))

    monkeypatch.setattr(sandbox, "Sandboxed", Bare)
    absent = {one.layer.name: one for one in layers.examine() if not one.active}
    assert {"landlock", "memory group"} <= set(absent)
    assert all(one.form == "" for one in absent.values())
    assert ("own user" in absent) != ("user namespace" in {one.layer.name for one in layers.examine() if one.active})
