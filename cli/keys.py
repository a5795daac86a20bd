"""`./mill keys init|export|rotate|revoke|renew|show`: the registry's keys: made, handed out, replaced and shown."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cli.errors import KeysArgumentsError
from cli.table import compact_table
from gristmill import records
from tasks.settings import Settings, from_environment

if TYPE_CHECKING:
    from registry.ceremony import Make, Replaced

OPENS = "MILL_KEYS_PASSPHRASE_FILE or MILL_KEYS_PASSPHRASE, or asked for at the terminal"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=("init", "export", "rotate", "revoke", "renew", "show"),
        help="init: make the missing keys and the registry; export: copy what one machine needs of them; "
        "rotate: replace a good key; revoke: a stolen or lost one; "
        "renew: let root and targets, or one of them, count for another year with the same keys",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a role, or one key of it, e.g. canary, root, root-2; several to export",
    )
    parser.add_argument("--to", metavar="DIR", type=Path, help="export: the folder that becomes that machine's keys/")
    parser.add_argument(
        "--unencrypted", action="store_true", help=f"no passphrase for new offline keys; by default {OPENS}"
    )
    parser.add_argument(
        "--signer", metavar="URI", default="", help="use this signer of securesystemslib instead of a new file"
    )
    parser.add_argument("--public", metavar="FILE", type=Path, help="public half of the --signer, in PEM form")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    settings = from_environment()
    if arguments.what == "show":
        return _show(settings, arguments.json)
    if arguments.what == "init":
        return _init(settings, arguments)
    if arguments.what == "export":
        return _export(settings, arguments)
    if arguments.what == "renew":
        return _renew(settings, arguments)
    return _replace(settings, arguments)


def _check(arguments: argparse.Namespace) -> None:
    from registry import expiry, keys

    what, known = arguments.what, [*keys.KEY_NAMES, *keys.KEY_NAMES["root"]]
    if what == "export":
        unknown = next((name for name in arguments.names if name not in known), None)
        if unknown is not None or arguments.signer:
            raise KeysArgumentsError(
                f"keys export: found {unknown or '--signer'!r}, expected names of keys: {', '.join(known)}; or none, "
                "for a machine that only looks"
            )
    elif len(arguments.names) > 1:
        raise KeysArgumentsError(f"keys {what}: found {len(arguments.names)} names, expected one")
    if (what == "export") != (arguments.to is not None):
        raise KeysArgumentsError(f"keys {what}: --to DIR belongs to export, which needs it")
    arguments.name = arguments.names[0] if len(arguments.names) == 1 else ""
    if what == "renew" and (arguments.name not in ("", *expiry.OFFLINE) or arguments.signer):
        raise KeysArgumentsError(
            f"keys renew: found {arguments.name or '--signer'!r}, expected {' or '.join(expiry.OFFLINE)}, or no name "
            "for both; ./mill renew renews what the online keys sign"
        )
    if what == "show" and (arguments.name or arguments.signer):
        raise KeysArgumentsError("keys show: shows all keys; give no name and no --signer")
    if bool(arguments.signer) != bool(arguments.public):
        raise KeysArgumentsError(f"keys {what}: --signer and --public belong together; give both or neither")
    if arguments.signer and arguments.name not in keys.key_names():
        raise KeysArgumentsError(f"keys {what}: --signer is for one key; name it: {', '.join(keys.key_names())}")
    if what == "init" and arguments.name and not arguments.signer:
        raise KeysArgumentsError("keys init: makes all keys that are missing; name one only with --signer")
    if what in ("rotate", "revoke") and arguments.name not in known:
        raise KeysArgumentsError(f"keys {what}: found {arguments.name!r}, expected one of {', '.join(known)}")


def _init(settings: Settings, arguments: argparse.Namespace) -> int:
    """Makes keys and registry. Again, it adds what is missing and changes nothing else."""
    from registry import keys, passphrase
    from registry.doctor import require_conditional_puts
    from registry.repository import Repository
    from tasks import object_store

    folder = settings.keys_dir
    if arguments.signer:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (folder / f"{arguments.name}.pub").exists():
            raise KeysArgumentsError(f"keys init: there is a {arguments.name} key already; use keys rotate")
        keys.use_key(folder, arguments.name, arguments.signer, arguments.public)
        print(f"{arguments.name} is signed by {arguments.signer.partition(':')[0]}; ./mill keys init makes the others")
        return 0
    secrets = passphrase.Remembered()
    keyring = keys.create_keys(folder, None if arguments.unencrypted else secrets.choose, secrets.ask)
    with object_store.opened(settings) as opened:
        require_conditional_puts(opened.store)
        Repository(opened.store, keyring).initialise()
    if not arguments.json:
        print(f"keys are in {folder}, readable by this user only; the registry is ready")
        print(f"give every host {keyring.root_path}: all that it trusts starts there")
        print(
            "each other machine gets its own with: ./mill keys export NAME... --to DIR, which becomes its keys/; then"
        )
        print("delete here the private half (NAME.pem) of whatever belongs elsewhere:")
    opened_names = [name for name in keys.OFFLINE if keyring.is_open(name)]
    if opened_names and not arguments.unencrypted:
        print(
            f"NOT encrypted: {', '.join(opened_names)}: whoever reads {folder} is these people; replace each with: "
            "./mill keys rotate NAME",
            file=sys.stderr,
        )
    return _show(settings, arguments.json)


def _export(settings: Settings, arguments: argparse.Namespace) -> int:
    from registry import keys
    from registry.key_export import export

    names = [name for given in arguments.names for name in keys.KEY_NAMES.get(given, (given,))]
    private = [str(path) for path in export(keys.load_keys(settings.keys_dir), names, arguments.to)]
    if arguments.json:
        print(json.dumps({"folder": str(arguments.to), "private": private}, indent=2))
        return 0
    print(
        f"{arguments.to} holds all public keys, root.json and {len(private)} private keys: {', '.join(names) or 'none'}"
    )
    print("move it to the other machine as keys/ in its MILL_HOME; whoever copies it meanwhile can sign as well")
    return 0


def _replace(settings: Settings, arguments: argparse.Namespace) -> int:
    from registry import ceremony, keys, passphrase
    from registry.key_report import KEEP
    from tasks import object_store

    secrets = passphrase.Remembered()
    keyring = keys.load_keys(settings.keys_dir, secrets.ask)
    step: Callable[..., Replaced] = ceremony.rotate if arguments.what == "rotate" else ceremony.revoke
    names = keys.KEY_NAMES.get(arguments.name, (arguments.name,))
    with object_store.opened(settings) as opened:
        replaced = step(opened.store, keyring, names, _maker(keyring.folder, arguments, secrets.choose))
    if arguments.json:
        print(json.dumps(vars(replaced), indent=2))
        return 0
    for name, key_id in replaced.new.items():
        former = replaced.former.get(name, "")
        print(
            f"{name}: {records.short(key_id)} counts now" + (f" instead of {records.short(former)}" if former else "")
        )
        print(f"  keep the new key {KEEP[keys.role_of(name)]}; destroy every copy of the old one")
    for path, tables in replaced.dropped.items():
        print(f"{path}: serves {', '.join(tables)} no longer; promote and approve anew what is still good")
    if arguments.what == "rotate" and arguments.name in ("judge", "approver"):
        print(f"what the old {arguments.name} key has signed goes on counting; ./mill keys revoke ends that")
    print(f"hosts follow at their next poll (root {replaced.root_version}); nothing has to be installed on them")
    return 0


def _renew(settings: Settings, arguments: argparse.Namespace) -> int:
    """Same keys, new version, another lifetime."""
    from registry import ceremony, expiry, keys, passphrase
    from registry.repository import Repository
    from tasks import object_store

    keyring = keys.load_keys(settings.keys_dir, passphrase.Remembered().ask)
    roles = (arguments.name,) if arguments.name else expiry.OFFLINE
    with object_store.opened(settings) as opened:
        ceremony.renew(opened.store, keyring, roles)
        expires = Repository(opened.store, keyring).expiries()
    if arguments.json:
        print(json.dumps({role: expires[role].isoformat() for role in roles}, indent=2))
        return 0
    for role in roles:
        print(f"{role}: counts until {expires[role]:%Y-%m-%d}, signed by the same keys")
    print("hosts follow at their next poll; nothing has to be installed on them")
    return 0


def _maker(folder: Path, arguments: argparse.Namespace, choose: Callable[[str], str]) -> Make:
    from registry import keys

    def make(name: str, stem: str) -> None:
        if arguments.signer:
            keys.use_key(folder, stem, arguments.signer, arguments.public)
            return
        closed = name in keys.OFFLINE and not arguments.unencrypted
        keys.make_key(folder, stem, choose(f"passphrase of key {stem}") if closed else "")

    return make


def _show(settings: Settings, as_json: bool) -> int:
    from registry import expiry
    from registry.key_report import facts
    from registry.keys import load_keys
    from registry.repository import Repository
    from tasks import object_store

    keyring = load_keys(settings.keys_dir)
    trusted, expiries = None, ()
    if keyring.root_path.exists():
        with object_store.opened(settings) as opened:
            repository = Repository(opened.store, keyring)
            if repository.exists():
                trusted, expiries = repository.trusted_keys(), expiry.expiries(repository)
    found = facts(keyring, trusted, expiries)
    for warning in expiry.warnings(expiries):
        print(f"WARNING: {warning}", file=sys.stderr)
    if as_json:
        print(json.dumps([vars(fact) for fact in found], indent=2))
        return 0
    said = {None: "no registry yet", True: "yes", False: "NO"}
    rows = [
        [fact.name, records.short(fact.key_id), fact.kind, fact.private, said[fact.trusted], fact.expires, fact.keep]
        for fact in found
    ]
    print(compact_table(rows, ["key", "id", "kind", "private half", "trusted", "signed until", "keep it"]))
    if not keyring.public["approver"]:
        print("there is no approver key: ./mill keys init makes it")
    elif trusted is not None and "approver" not in trusted:
        print("stable does not ask for the approver yet: ./mill approve stable, then ./mill keys rotate approver")
    return 0
