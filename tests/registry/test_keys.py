"""Keys: encrypted ones open with what the environment, a file or a person says; others never leave their service."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from securesystemslib.signer import SIGNER_FOR_URI_SCHEME, CryptoSigner, Key, Signer

from gristmill import trust
from registry import passphrase
from registry.ceremony import rotate
from registry.errors import KeyFileError, PassphraseError
from registry.key_report import facts
from registry.keys import OFFLINE, create_keys, is_encrypted, load_keys, make_key, use_key
from registry.passphrase import FILE_VARIABLE, SHORTEST, VARIABLE, Remembered
from registry.publication import move
from tests.registry.world import CANARY, STABLE, World

SECRET = "correct horse battery"


@pytest.fixture(autouse=True)
def nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VARIABLE, FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(passphrase, "_taken", [])
    monkeypatch.setattr(sys, "stdin", io.StringIO())


class ServiceSigner(CryptoSigner):
    """A key service on this machine: `service:PATH`."""

    @classmethod
    def from_priv_key_uri(cls, priv_key_uri: str, public_key: Key, secrets_handler: object = None) -> CryptoSigner:
        return CryptoSigner.from_priv_key_uri(priv_key_uri.replace("service:", "file2:"), public_key)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Folder of an ECDSA key that a service holds; its public half is in `public.pem`."""
    monkeypatch.setitem(SIGNER_FOR_URI_SCHEME, "service", ServiceSigner)
    folder = tmp_path / "service"
    folder.mkdir()
    key = generate_private_key(SECP256R1())
    (folder / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / "public.pem").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return folder


class TestEncrypted:
    def test_offline_keys_are_and_online_ones_are_not(self, tmp_path: Path) -> None:
        keyring = create_keys(tmp_path, lambda name: SECRET)
        closed = {path.stem for path in tmp_path.glob("*.pem") if is_encrypted(path)}
        assert closed == set(OFFLINE)
        assert keyring.is_unattended("canary") and not keyring.is_unattended("approver")
        assert all(SECRET.encode() not in path.read_bytes() for path in tmp_path.iterdir())

    @pytest.mark.parametrize("source", ["variable", "file"])
    def test_they_open_with_what_the_environment_says(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
    ) -> None:
        create_keys(tmp_path / "keys", lambda name: SECRET)
        (tmp_path / "secret").write_text(SECRET + "\n")
        monkeypatch.setenv(*((VARIABLE, SECRET) if source == "variable" else (FILE_VARIABLE, str(tmp_path / "secret"))))
        assert len(load_keys(tmp_path / "keys").signers("root")) == 3
        assert VARIABLE not in os.environ, "nothing that is started later inherits it"
        assert len(load_keys(tmp_path / "keys").signers("targets")) == 1

    def test_wrong_or_missing_passphrases_are_one_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        create_keys(tmp_path, lambda name: SECRET)
        with pytest.raises(PassphraseError, match=f"root-1 is needed; set {FILE_VARIABLE}"):
            load_keys(tmp_path).signers("root")
        with pytest.raises(KeyFileError, match=r"root-1\.pem.*passphrase does not open it"):
            load_keys(tmp_path, lambda name: "wrong").signers("root")
        monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "nothing"))
        with pytest.raises(PassphraseError, match="expected a text file"):
            load_keys(tmp_path).signers("root")

    def test_a_new_one_has_a_length(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, "x" * (SHORTEST - 1))
        with pytest.raises(PassphraseError, match=f"expected {SHORTEST}"):
            passphrase.choose("passphrase")

    def test_what_was_chosen_is_not_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(passphrase.getpass, "getpass", lambda prompt: asked.append(prompt) or SECRET)
        remembered = Remembered()
        assert remembered.choose("a") == remembered.ask("a") == remembered.ask("b") == remembered.ask("b") == SECRET
        assert asked == ["new a: ", "new a, again: ", "b: "]

    def test_two_that_differ(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answers = iter([SECRET, SECRET + "!"])
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(passphrase.getpass, "getpass", lambda prompt: next(answers))
        with pytest.raises(PassphraseError, match="differ"):
            passphrase.choose("a")

    def test_a_public_half_lost_in_a_crash_is_derived(self, tmp_path: Path) -> None:
        before = create_keys(tmp_path, lambda name: SECRET)
        (tmp_path / "root-1.pub").unlink()
        assert create_keys(tmp_path, secrets=lambda name: SECRET).public == before.public


class TestServices:
    @pytest.mark.parametrize("name", ["timestamp", "stable", "judge", "approver"])
    def test_hosts_follow_a_key_of_another_kind_in_a_service(self, tmp_path: Path, service: Path, name: str) -> None:
        world = World(tmp_path)
        world.publish("rms_norm", b"code 1")
        move(world.store, world.keyring, CANARY)
        puller = world.puller("stable", STABLE)
        puller.poll()

        def make(_: str, stem: str) -> None:
            use_key(world.keyring.folder, stem, f"service:{service / 'key'}", service / "public.pem")

        rotate(world.store, world.keyring, [name], make)
        world.keyring = load_keys(world.keyring.folder)
        assert not (world.keyring.folder / f"{name}.pem").exists()
        assert world.keyring.is_unattended(name)
        world.publish("rms_norm", b"code 2")
        move(world.store, world.keyring, CANARY)
        generation = puller.poll()
        assert generation is not None
        assert [path.read_bytes() for path in generation.objects.values()] == [b"code 2"]
        (fact,) = [fact for fact in facts(world.keyring, world.repository.trusted_keys()) if fact.name == name]
        assert (fact.kind, fact.private, fact.trusted) == ("ecdsa", "in service", True)

    def test_back_to_a_file(self, tmp_path: Path, service: Path) -> None:
        create_keys(tmp_path / "keys")
        world = World(tmp_path)
        world.publish("rms_norm", b"code 1")
        folder = world.keyring.folder
        rotate(
            world.store,
            world.keyring,
            ["canary"],
            lambda name, stem: use_key(folder, stem, f"service:{service / 'key'}", service / "public.pem"),
        )
        rotate(world.store, load_keys(folder), ["canary"], lambda name, stem: make_key(folder, stem))
        assert (folder / "canary.pem").exists() and not (folder / "canary.uri").exists()

    def test_an_unknown_scheme(self, tmp_path: Path, service: Path) -> None:
        with pytest.raises(KeyFileError, match="expected one of awskms"):
            use_key(tmp_path, "canary", "nokms:1", service / "public.pem")
        with pytest.raises(KeyFileError, match="PEM"):
            use_key(tmp_path, "canary", "awskms:1", service / "key")
        assert not list(tmp_path.glob("canary.*"))

    def test_a_service_that_does_not_answer(self, tmp_path: Path, service: Path) -> None:
        keyring = create_keys(tmp_path)
        use_key(tmp_path, "canary", f"service:{service / 'gone'}", service / "public.pem")
        with pytest.raises(KeyFileError, match="does not answer"):
            load_keys(keyring.folder).signers("canary")

    def test_keys_of_any_kind_are_written_into_policies(self, service: Path) -> None:
        generated: list[Signer] = [CryptoSigner.generate_ed25519(), CryptoSigner.generate_ecdsa()]
        for key in [signer.public_key for signer in generated]:
            assert trust.public_key(trust.key_text(key)) == key
        named = CryptoSigner.generate_ed25519(keyid="mine").public_key
        assert trust.public_key(trust.key_text(named)) == named


def test_show_says_which_are_elsewhere(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.publish("rms_norm", b"code")
    (world.keyring.folder / "root-3.pem").unlink()
    found = {fact.name: fact for fact in facts(world.keyring, world.repository.trusted_keys())}
    assert found["root-3"].private == "elsewhere" and found["root-1"].private == "here"
    assert all(fact.trusted for fact in found.values())
    make_key(world.keyring.folder, "canary")
    again = {fact.name: fact for fact in facts(load_keys(world.keyring.folder), world.repository.trusted_keys())}
    assert [name for name, fact in again.items() if not fact.trusted] == ["canary"]
    assert {fact.trusted for fact in facts(world.keyring, None)} == {None}
