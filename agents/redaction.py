"""What must not leave this machine in prompts, logs and records is taken out of text: secrets, host paths, names.

One `Redactor` stands at each edge where text leaves: before a prompt is sent, and before an episode is recorded. It
knows the values of keys that the environment holds when it is made; where the door has moved provider keys elsewhere
before, it finds them by their form alone.

What is taken out:

* the values of environment variables whose names sound like keys, also as JSON, URLs and base64 write them;
* anything of the form of a provider's key, a token, a private key, or credentials in a URL;
* folders of this host and of its users: what remains of such a path is its last part (`main.cpp:3: error`);
* the names of this machine and of its user.

System paths (`/usr/include/...`) stay: they are the same everywhere. What is neither known as a secret nor has the form
of one cannot be found. Values shorter than 8 characters are not looked for: they would hit ordinary words.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import getpass
import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

SECRET = "[secret]"
PATH = "[path]"
NAME = "[name]"
LEAST_SECRET = 8
"""Characters of the shortest value that is taken for a secret."""
LEAST_NAME = 6
"""Characters of the shortest name that is looked for everywhere; a shorter one only where a name is meant."""
KEY_LIKE = re.compile(
    r"KEY|TOKEN(?!S|IZ)|SECRET|PASS(WORD|WD|PHRASE)?$|PASSWORD|CREDENTIAL|AUTH|COOKIE|PRIVATE|(_|^)(PAT|DSN|PWD)$", re.I
)
"""In the name of an environment variable. Numbers of tokens are none, and `PWD` is a folder."""
START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
"""Of a word, which may follow a line break as JSON writes it."""
PREFIXES = (
    *("sk-", "pk-", "rk-", "gsk_", "xai-", "pplx-", "nvapi-", "hf_", "r8_", "glpat-", "fw_", "tgp_", "csk-"),
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "dop_", "AIza"),
)
"""With which providers' keys begin."""
KEY_FORMS = re.compile(
    rf"""
    {START}(?:{"|".join(map(re.escape, PREFIXES))})[A-Za-z0-9_-]{{16,}}
    | {START}(?:AKIA|ASIA)[A-Z0-9]{{16}}\b                  # AWS
    | {START}xox[a-z]-[A-Za-z0-9-]{{10,}}                   # Slack
    | {START}eyJ[A-Za-z0-9_-]{{8,15}}\.[A-Za-z0-9_-]{{8,}}+\.[A-Za-z0-9_-]*+     # JSON web token
    | {START}eyJ[A-Za-z0-9_-]{{16,}}+(?:\.[A-Za-z0-9_-]++)*+                   # or whatever JSON, also half a token
    | (?<=://)[^\s/:@"'\\]+:[^\s/@"'\\]+(?=@)              # credentials in a URL
    | (?<=\bBearer\ )[A-Za-z0-9._~+/=-]{{12,}}
    | (?<=\bBasic\ )[A-Za-z0-9+/=]{{12,}}
    | (?<=[?&]key=)[A-Za-z0-9_-]{{12,}}
    | (?<=(?i:api[_-]key)["'=:])[\ "'=:]*[A-Za-z0-9_.-]{{12,}}
    """,
    re.VERBOSE,
)
KEY_SIGNS = (*PREFIXES, "AKIA", "ASIA", "xox", "eyJ", "://", "Bearer ", "Basic ", "key=", "KEY", "Key", "_key", "-key")
"""A text without any of these has no key in it. Looking for them takes no time, which the expression does."""
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
PRIVATE_ROOTS = (
    *("home", "Users", "root", "tmp", "private", "work", "workspace", "workspaces", "mnt", "media", "data", "srv"),
    *("scratch", "builds", "nfs", "export", "run/user", "var/tmp", "var/folders", "var/lib", "dev/shm", "github"),
)
"""First parts of paths that say something of a host or its users."""
PATH_PART = r"""(?:\[secret\]|[^\s/\\"'`<>|;:,()\[\]{}*?$&=])+"""
SLASH = r"\\?/"
"""As it is, and as some write it in JSON."""
WINDOWS_PATH = r"""[A-Za-z]:(?:\\\\?|/)Users(?:(?:\\\\?|/)[^\s/\\"'`<>|;:,]+)+"""
COMMON_NAMES = frozenset({"root", "user", "users", "admin", "ubuntu", "debian", "localhost", "runner", "nobody", "max"})
"""Names that say nothing of anybody, and would be missed in a text."""
COMMON_FOLDERS = frozenset({"/", "/usr", "/usr/local", "/bin", "/lib", "/etc", "/opt", "/var", "/proc", "/dev"})

R = TypeVar("R")


class Redactor:
    """Immutable and thread-safe. Redacting twice changes nothing more."""

    def __init__(self, secrets: Iterable[str] = (), folders: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        """
        Args:
            secrets: values, each looked for as it is and as JSON, URLs and base64 write it.
            folders: of this host, besides those that look like one.
            names: of the machine and its users.
        """
        marks = SECRET + PATH + NAME
        written = {form for value in secrets if len(value) >= LEAST_SECRET for form in _forms(value)}
        self._secrets = sorted((form for form in written if form not in marks), key=lambda form: (-len(form), form))
        self._folders = frozenset(folder.rstrip("/") for folder in folders)
        self._paths = _paths(self._folders)
        words = {name for name in names if len(name) > 1 and name.lower() not in COMMON_NAMES and name not in marks}
        self._names = _names(words)
        roots = {"/" + path.strip("/").partition("/")[0] for path in (*PRIVATE_ROOTS, *self._folders) if path}
        self._signs = ("~", "Users", *words, *roots)

    @classmethod
    def of_this_host(cls, environ: Mapping[str, str] = os.environ) -> Redactor:
        """Knows the secrets of this environment, and this host's folders and names."""
        secrets = [value for name, value in environ.items() if KEY_LIKE.search(name) and name != "PWD"]
        folders = [str(Path.home()), str(Path.cwd()), tempfile.gettempdir(), sys.prefix, environ.get("MILL_HOME", "")]
        host = socket.gethostname()
        names = [host, host.partition(".")[0], environ.get("USER", ""), environ.get("LOGNAME", ""), _user()]
        return cls(secrets, [folder for folder in folders if folder.rstrip("/") not in COMMON_FOLDERS], names)

    def text(self, text: str) -> str:
        """The text without what must not leave, and without what is no text: lone surrogates and null characters."""
        text = text.encode(errors="replace").decode().replace("\0", "?")
        for form in self._secrets:
            text = text.replace(form, SECRET)
        text = PRIVATE_KEY.sub(SECRET, text) if "PRIVATE KEY" in text else text
        if not _any_in(text, KEY_SIGNS) and not _any_in(text, self._signs):
            return text
        return "\n".join(map(self._line, text.split("\n")))

    def _line(self, line: str) -> str:
        if _any_in(line, KEY_SIGNS):
            line = KEY_FORMS.sub(SECRET, line)
        if _any_in(line, self._signs):
            line = self._names.sub(NAME, self._paths.sub(self._last_part, line))
        return line

    def record(self, record: R) -> R:
        """The same record with every text in it redacted. Words of enums stay."""
        return cast(R, self._walk(record))

    def _walk(self, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return value
        if isinstance(value, str):
            return self.text(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.replace(
                value, **{f.name: self._walk(getattr(value, f.name)) for f in dataclasses.fields(value)}
            )
        if isinstance(value, Mapping):
            return {self._walk(name): self._walk(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._walk(item) for item in value)
        return value

    def _last_part(self, found: re.Match[str]) -> str:
        """`[path]/main.cpp`; `[path]` for a root, for a folder of this host and for somebody's home."""
        path = found[0].removeprefix("file://").rstrip("/")
        parts = [part for part in re.split(r"[/\\]+", path) if part]
        home = len(parts) == 2 and parts[0] in ("home", "Users")
        return PATH if len(parts) < 2 or home or path in self._folders else f"{PATH}/{parts[-1]}"


def _forms(value: str) -> set[str]:
    """How a value may be written: as it is, in JSON, in a URL, in base64 with and without padding."""
    raw = value.encode(errors="surrogatepass")
    encoded = {base64.b64encode(raw).decode().rstrip("="), base64.urlsafe_b64encode(raw).decode().rstrip("=")}
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    return {value, value.strip(), *escaped, quote(value, safe="", errors="replace"), *encoded} - {""}


def _any_in(text: str, signs: Iterable[str]) -> bool:
    return any(map(text.__contains__, signs))


def _paths(folders: Iterable[str]) -> re.Pattern[str]:
    """Whole paths that begin with one of these folders, with a root that is private everywhere, or with `~`."""
    known = "|".join(sorted(map(re.escape, (f for f in folders if f.startswith("/"))), key=len, reverse=True))
    roots = "|".join(map(re.escape, PRIVATE_ROOTS))
    part = rf"(?:(?:{SLASH})+{PATH_PART})"
    begin = r"(?:(?<![\w\].)~/-])|(?<=\\[nrt])|(?<=-[A-Za-z]))"
    unix = rf"{begin}(?:file://)?(?:(?:{known or '(?!)'})(?![\w.-]){part}*|{SLASH}(?:{roots})(?![\w.-]){part}+)"
    home = rf"{begin}~[\w-]*{part}+"
    return re.compile(f"(?:{unix}|{home}|{WINDOWS_PATH})(?:{SLASH})*")


def _names(names: Iterable[str]) -> re.Pattern[str]:
    """Telling names wherever they stand as a word; short ones beside an `@` only."""
    telling: set[str] = set()
    short: set[str] = set()
    for name in names:
        (telling if len(name) >= LEAST_NAME or re.search(r"[\d.-]", name) else short).add(re.escape(name))
    begin, end = r"(?:(?<![\w-])|(?<=\\[nrt]))", r"(?![\w-])"
    options = [rf"{begin}{name}{end}" for name in sorted(telling, key=len, reverse=True)]
    options += [option for name in sorted(short) for option in (rf"{begin}{name}(?=@)", rf"(?<=@){name}{end}")]
    return re.compile("|".join(options) or r"(?!)")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return ""
