"""`./mill keys` with keys that stay in a key service: securesystemslib's own `awskms:`, asking another process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.__main__ import main
from gristmill.directory_store import DirectoryStore
from gristmill.pull import Puller
from gristmill.trust import Channel
from registry.errors import KeyFileError
from registry.keys import load_keys
from registry.publication import publish
from registry.repository import Repository
from tasks.settings import from_environment
from tests.registry import key_service
from tests.registry.world import make_artifact, take

KINDS = {"ecdsa": "ECC_NIST_P256", "rsa": "RSA_2048"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with key_service.running() as address:
        yield address


class Service:
    """The key service, as its owner sees it."""

    def __init__(self, folder: Path) -> None:
        import boto3

        self.folder, self.client = folder, boto3.client("kms")

    def make(self, kind: str) -> tuple[str, str]:
        """A key of that kind: its signer URI, and the file with its public half."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

        key_id = self.client.create_key(KeySpec=KINDS[kind], KeyUsage="SIGN_VERIFY")["KeyMetadata"]["KeyId"]
        public = load_der_public_key(self.client.get_public_key(KeyId=key_id)["PublicKey"])
        path = self.folder / f"{key_id}.pub"
        path.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        return f"awskms:{key_id}", str(path)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> Path:
    (tmp_path / "store").mkdir()
    for name, value in {
        "MILL_HOME": str(tmp_path / "home"),
        "MILL_STORE": f"file://{tmp_path / 'store'}",
        "AWS_ENDPOINT_URL_KMS": endpoint,
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert main(["keys", "init", "--unencrypted"]) == 0
    return tmp_path / "home"


@pytest.fixture
def service(home: Path) -> Service:
    return Service(home.parent)


class Fleet:
    """A host that was given the first root and nothing since."""

    def __init__(self, home: Path) -> None:
        settings = from_environment()
        self.channel = Channel("canary", settings.fleet, settings.model, settings.hardware)
        self.home, self.store = home, DirectoryStore(home.parent / "store")
        root = (home / "keys" / "root.json").read_bytes()
        self.puller = Puller(
            self.store, root, settings.fleet, settings.model, settings.hardware, "canary", home.parent / "cache"
        )

    def serves(self, code: bytes) -> bool:
        """Whether what is published now reaches it."""
        made, files = make_artifact("rms_norm", code)
        artifact = replace(made, table=replace(made.table, hardware=self.channel.hardware))
        publish(self.store, load_keys(self.home / "keys"), self.channel, [artifact], files, take)
        generation = self.puller.poll()
        return generation is not None and [one.read_bytes() for one in generation.objects.values()] == [code]


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    capsys.readouterr()
    assert main(["keys", "show", "--json"]) == 0
    return {fact["name"]: fact for fact in json.loads(capsys.readouterr().out)}


def rotate(name: str, key: tuple[str, str]) -> int:
    return main(["keys", "rotate", name, "--signer", key[0], "--public", key[1]])


def test_the_offline_keys_move_into_a_service_and_hosts_follow(
    home: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(home)
    assert fleet.serves(b"code 1")
    for name, kind in {"root-1": "ecdsa", "root-2": "rsa", "targets": "ecdsa", "canary": "rsa"}.items():
        assert rotate(name, service.make(kind)) == 0
        assert not (home / "keys" / f"{name}.pem").exists()
        fact = shown(capsys)[name]
        assert (fact["kind"], fact["private"], fact["trusted"]) == (kind, "in awskms", True)
    (home / "keys" / "root-3.pem").unlink()
    assert fleet.serves(b"code 2")
    assert main(["canary", "--share", "5"]) == 0, "signed by targets, in the service"
    assert "on 5 % of auto hosts" in capsys.readouterr().out
    assert main(["keys", "rotate", "timestamp"]) == 0, "two root keys, both in the service"
    assert fleet.serves(b"code 3")


def test_a_service_that_is_gone_or_refuses_is_one_line_and_nothing_changes(
    home: Path, service: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = service.make("ecdsa")
    assert rotate("targets", key) == 0
    repository = Repository(DirectoryStore(home.parent / "store"), load_keys(home / "keys"))
    before = repository.read().timestamp.signed.version
    capsys.readouterr()

    def told() -> str:
        assert main(["canary", "--share", "7"]) == 2
        out, err = capsys.readouterr()
        assert out == "" and len(err.splitlines()) == 1 and "targets.uri" in err and "does not answer" in err
        return err

    service.client.disable_key(KeyId=key[0].removeprefix("awskms:"))
    assert "Disabled" in told()
    (home / "keys" / "targets.uri").write_text("awskms:00000000-0000-0000-0000-000000000000")
    assert "NotFound" in told()
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", "http://127.0.0.1:1")
    assert "127.0.0.1:1" in told()
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "nothing"))
    assert "region" in told()
    assert repository.read().timestamp.signed.version == before


@pytest.mark.parametrize("name", ["root-1", "targets", "stable", "judge"])
def test_a_uri_that_names_another_key_signs_nothing(
    home: Path, service: Service, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Hosts would refuse everything from the moment at which such a signature was published."""
    fleet = Fleet(home)
    assert fleet.serves(b"code 1")
    (uri, _), (right, public) = service.make("ecdsa"), service.make("ecdsa")
    code = rotate(name, (uri, public))
    if name == "judge":
        assert code == 0, "it signs nothing before the next promotion"
        with pytest.raises(KeyFileError, match="another key than the public half"):
            fleet.serves(b"code 2")
    else:
        assert code == 2 and "another key than the public half" in capsys.readouterr().err
        stem = home / "keys" / f"{name}.next"
        Path(f"{stem}.uri").write_text(right)
        assert rotate(name, (right, public)) == 0, "mended, the same command goes on"
        assert fleet.serves(b"code 2")
