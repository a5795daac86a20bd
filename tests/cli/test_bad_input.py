"""What can be mended is one line on standard error and exit code 2, and leaves nothing half-written."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cli import __main__ as command_line
from cli import commands
from gristmill import records
from gristmill.directory_store import DirectoryStore
from registry.embedded_store import EmbeddedStore
from registry.keys import create_keys, load_keys
from registry.repository import Repository
from tasks import search_lock, traffic
from tasks.compilation import search_id_of
from tests.registry.world import shared_keys
from tests.tasks.world import HARDWARE, PEAKS, profile, rms_norm, settings

ROOT = Path(__file__).parents[2]
HONEST = """#include "gristmill_kernel.h"
GM_EXPORT int32_t gm_run(const gm_call *) { return 0; }
"""
STARTUP = ("MILL_", "AWS_", "PREFECT_", "MLFLOW_")


@dataclass(frozen=True)
class Run:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


Mill = Callable[..., Run]


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """A home of its own, whose peaks need no measuring, and a store in a folder that is not there yet."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "peaks.json").write_bytes(records.canonical_json(PEAKS))
    return {"MILL_HOME": str(tmp_path / "home"), "MILL_STORE": f"file://{tmp_path}/store"}


@pytest.fixture
def mill(
    tmp_path: Path,
    variables: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Mill:
    """`(*arguments, **variables) -> run`, in this process, which has loaded everything. A traceback fails the test."""

    def mill(*arguments: object, **more: str) -> Run:
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            for name in [name for name in os.environ if name.startswith(STARTUP)]:
                patch.delenv(name)
            for name, value in {**variables, **more}.items():
                patch.setenv(name, value)
            capfd.readouterr()
            try:
                code = command_line.main([str(argument) for argument in arguments])
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 1
            return Run(code, *capfd.readouterr())

    return mill


def complaint(run: Run) -> str:
    """The one line; fails the test if there is more, or another exit code."""
    assert run.returncode == 2, (run.returncode, run.stderr)
    lines = run.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("mill: "), run.stderr
    assert run.stdout == ""
    return lines[0]


@pytest.fixture
def runs(variables: dict[str, str], template_home: Path) -> None:
    """Searches find an MLflow that is in use."""
    shutil.copy(template_home / "mlflow.db", variables["MILL_HOME"])


def keep_profile(folder: Path) -> None:
    """A captured profile of the fleet that the commands work for by default."""
    (folder / "store").mkdir(exist_ok=True)
    captured = profile(rms_norm(1, hidden=1024, time_ns=10**9))
    chosen = replace(settings(folder / "home", folder / "store"), fleet="demo", model="llama-8x1024")
    traffic.keep_profile(DirectoryStore(folder / "store"), chosen, captured)


class TestTraces:
    @pytest.mark.parametrize(
        ("text", "place"),
        [
            ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,10,x\n", "row 2, field GeneratedTokens"),
            ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,10,5\nnow,1,1\n", "row 3, field TIMESTAMP"),
            ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,10\n", "row 2, field GeneratedTokens"),
            ("TIMESTAMP,ContextTokens\n", "row 1, field GeneratedTokens"),
            ('{"timestamp": 0, "input_length": 5}\n', "row 1, field output_length"),
            ('{"timestamp": 0, "input_length": 5, "output_length": 1}\n{"timestamp"\n', "row 2"),
            ("", "row 1"),
        ],
    )
    def test_a_malformed_row_is_named(self, mill: Mill, tmp_path: Path, text: str, place: str) -> None:
        (tmp_path / "trace").write_text(text)
        run = mill("serve", "--trace", tmp_path / "trace", "--rounds", 1)
        assert place in complaint(run)
        assert not (tmp_path / "store").exists() and not (tmp_path / "home" / "keys").exists()

    def test_a_trace_that_is_not_there(self, mill: Mill, tmp_path: Path) -> None:
        assert "nowhere.csv" in complaint(mill("serve", "--trace", tmp_path / "nowhere.csv"))


class Refusing(http.server.BaseHTTPRequestHandler):
    """Answers every request with a status of the server's."""

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.send_header("Content-Length", "0")
        self.end_headers()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class Forgetful(http.server.BaseHTTPRequestHandler):
    """An S3 endpoint that keeps objects and ignores every condition on a put."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.objects[self._key()] = body  # type: ignore[attr-defined]
        self._answer(200, b"", body)

    def do_HEAD(self) -> None:
        self._answer(200, b"", b"")

    def do_GET(self) -> None:
        if "list-type=2" in self.path:
            names = "".join(f"<Contents><Key>{key[8:]}</Key></Contents>" for key in self.server.objects)  # type: ignore[attr-defined]
            self._answer(200, f"<ListBucketResult>{names}</ListBucketResult>".encode(), b"")
            return
        found = self.server.objects.get(self._key())  # type: ignore[attr-defined]
        if found is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", b"")
        else:
            self._answer(200, found, found)

    def do_DELETE(self) -> None:
        self.server.objects.pop(self._key(), None)  # type: ignore[attr-defined]
        self._answer(204, b"", b"")

    def _key(self) -> str:
        return self.path.partition("?")[0]

    def _answer(self, status: int, body: bytes, content: bytes) -> None:
        self.send_response(status)
        self.send_header("ETag", f'"{records.sha256_hex(content)[:32]}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Callable[..., tuple[str, Any]]]:
    """`(handler, status) -> (store address, server)`: a tiny S3 endpoint on loopback."""
    servers = []

    def start(handler: type[http.server.BaseHTTPRequestHandler], status: int = 200) -> tuple[str, Any]:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.status, server.objects = status, {}  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"s3://bucket?endpoint=http://127.0.0.1:{server.server_port}", server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


KEYS = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "a-secret-word"}


def give_keys(tmp_path: Path) -> None:
    """What `./mill keys init` makes, for another store: without keys no command comes as far as one."""
    shutil.copytree(shared_keys(), tmp_path / "home" / "keys")
    (tmp_path / "other").mkdir()
    Repository(DirectoryStore(tmp_path / "other"), load_keys(tmp_path / "home" / "keys")).initialise()


class TestStores:
    @pytest.fixture(autouse=True)
    def keys(self, tmp_path: Path, variables: dict[str, str]) -> None:
        give_keys(tmp_path)

    @pytest.mark.parametrize("command", ["capture", "rank", "compile", "rollback"])
    def test_nothing_answers(self, mill: Mill, command: str) -> None:
        said = complaint(mill(command, MILL_STORE="s3://bucket?endpoint=http://127.0.0.1:9", **KEYS))
        assert "nothing answers there; start the store" in said

    @pytest.mark.parametrize("command", ["capture", "rank", "compile", "memory", "promote --release", "registry log"])
    def test_a_folder_that_cannot_be_made_is_one_to_make(self, mill: Mill, tmp_path: Path, command: str) -> None:
        store = tmp_path / "nowhere" / "store"
        said = complaint(mill(*command.split(), MILL_STORE=f"file://{store}"))
        assert f"file://{store}: neither this folder nor the one it would be in exists" in said
        assert said.endswith(f"mkdir -p {store}") and not store.parent.exists()

    @pytest.mark.parametrize("url", ["ftp://x", "s3://", "file://relative", "s3://b?port=1", "nonsense", "s3://a:b@c"])
    def test_an_address_that_makes_no_sense(self, mill: Mill, url: str) -> None:
        assert "store address" in complaint(mill("capture", MILL_STORE=url))

    @pytest.mark.parametrize("command", ["capture", "registry log"])
    def test_wrong_credentials(self, mill: Mill, embedded_store: EmbeddedStore, tmp_path: Path, command: str) -> None:
        """A real store that checks signatures."""
        wrong = {"AWS_ACCESS_KEY_ID": embedded_store.credentials.access_key, "AWS_SECRET_ACCESS_KEY": "a-secret-word"}
        run = mill(*command.split(), MILL_STORE=embedded_store.url, **wrong)
        assert "AWS_SECRET_ACCESS_KEY" in complaint(run)
        assert "a-secret-word" not in run.stderr

    def test_no_credentials_or_no_permission(
        self, mill: Mill, tmp_path: Path, endpoint: Callable[..., tuple[str, Any]]
    ) -> None:
        url, _ = endpoint(Refusing, 403)
        assert "was refused" in complaint(mill("capture", MILL_STORE=url, **KEYS))
        said = complaint(mill("capture", MILL_STORE=url, AWS_EC2_METADATA_DISABLED="true", HOME=str(tmp_path)))
        assert "no credentials; set AWS_ACCESS_KEY_ID" in said

    @pytest.mark.parametrize("command", ["keys init --unencrypted", "serve --rounds 1"])
    def test_a_store_without_conditional_puts_gets_no_registry(
        self, mill: Mill, endpoint: Callable[..., tuple[str, Any]], command: str
    ) -> None:
        url, server = endpoint(Forgetful)
        assert "condition" in complaint(mill(*command.split(), MILL_STORE=url, **KEYS))
        assert server.objects == {}

    def test_doctor_finds_it_too(self, mill: Mill, endpoint: Callable[..., tuple[str, Any]]) -> None:
        url, _ = endpoint(Forgetful)
        run = mill("registry", "doctor", "--json", MILL_STORE=url, **KEYS)
        assert run.returncode == 1 and not all(finding["passed"] for finding in json.loads(run.stdout))


class TestProfiles:
    def test_a_spool_without_samples(self, mill: Mill, tmp_path: Path) -> None:
        (tmp_path / "store").mkdir()
        assert "let the fleet serve with sampling on" in complaint(mill("capture"))
        assert list((tmp_path / "store").iterdir()) == []

    def test_a_spool_file_that_is_damaged(self, mill: Mill, tmp_path: Path) -> None:
        key = f"spool/demo/llama-8x1024/{HARDWARE}/operators/{time.time_ns()}-host-1-0.parquet"
        (tmp_path / "store").mkdir()
        DirectoryStore(tmp_path / "store").put_new(key, b"PAR1 but not really")
        assert key in complaint(mill("capture"))
        assert not (tmp_path / "store" / "profiles").exists()

    @pytest.mark.parametrize("command", ["rank", "compile"])
    def test_nothing_was_captured(self, mill: Mill, tmp_path: Path, command: str) -> None:
        said = complaint(mill(command))
        assert "run ./mill capture first" in said and "./mill serve" in said and "./mill demo does all of it" in said
        assert not (tmp_path / "store").exists(), "looking makes no store"

    def test_nothing_was_searched(self, mill: Mill) -> None:
        assert "run ./mill compile first" in complaint(mill("promote"))

    def test_measurements_that_are_none(self, mill: Mill, tmp_path: Path) -> None:
        (tmp_path / "rows.json").write_text("{}")
        assert "rows.json: field 'file_name' is missing" in complaint(mill("promote", "--tuned", "rows.json"))
        assert "No such file" in complaint(mill("promote", "--tuned", "none.json"))
        assert "leave --release and --search out" in complaint(mill("promote", "--tuned", "rows.json", "--release"))

    @pytest.mark.usefixtures("runs")
    def test_a_profile_without_time(self, mill: Mill, tmp_path: Path) -> None:
        (tmp_path / "store").mkdir()
        chosen = replace(settings(tmp_path / "home", tmp_path / "store"), fleet="demo", model="llama-8x1024")
        traffic.keep_profile(DirectoryStore(tmp_path / "store"), chosen, profile(rms_norm(1, time_ns=0)))
        assert "capture again" in complaint(mill("compile"))
        assert [path.name for path in (tmp_path / "home").glob("searches/*/*")] == ["lock"], "no search has begun"

    @pytest.mark.parametrize("variable", ["MILL_FLEET", "MILL_MODEL"])
    def test_a_fleet_that_no_channel_can_have(self, mill: Mill, variable: str) -> None:
        assert variable in complaint(mill("rank", **{variable: "a/b"}))


class TestCompiling:
    def test_flags_of_a_file_do_not_go_with_a_host(self, mill: Mill) -> None:
        assert "takes no setup" in complaint(mill("judge", "--calibrate", "--setup"))

    @pytest.mark.parametrize(
        ("ranges", "said"),
        [("--range nope=1..3", "no axis 'nope'"), ("--range hidden=1..3 --range hidden=2..4", "two ranges of hidden")],
    )
    def test_ranges_are_of_the_operator_s_axes(self, mill: Mill, tmp_path: Path, ranges: str, said: str) -> None:
        (tmp_path / "x.cpp").write_text("gm_run")
        assert said in complaint(mill("judge", tmp_path / "x.cpp", "--operator", "rms_norm", *ranges.split()))

    @pytest.mark.parametrize("command", ["compile --operator nope", "judge x.cpp --operator nope"])
    def test_an_unknown_operator_lists_the_known_ones(self, mill: Mill, tmp_path: Path, command: str) -> None:
        said = complaint(mill(*command.split()))
        assert "'nope'" in said and "rms_norm" in said and "skinny_linear" in said

    @pytest.mark.usefixtures("runs")
    def test_an_operator_that_the_profile_lacks(self, mill: Mill, tmp_path: Path) -> None:
        keep_profile(tmp_path)
        assert "the profile, which holds rms_norm" in complaint(mill("compile", "--operator", "softmax"))

    def test_a_mistyped_model_names_the_configured_ones(self, mill: Mill, tmp_path: Path) -> None:
        keep_profile(tmp_path)
        said = complaint(mill("compile", "--model", "openai/gpt5", MILL_MODELS="openai/gpt-5"))
        assert "'openai/gpt5' is not configured; expected one of openai/gpt-5" in said

    def test_a_search_that_another_process_is_at(self, mill: Mill, tmp_path: Path) -> None:
        keep_profile(tmp_path)
        captured = traffic.latest_profile(
            DirectoryStore(tmp_path / "store"), replace(settings(tmp_path / "home"), fleet="demo", model="llama-8x1024")
        )
        with search_lock.held(tmp_path / "home" / "searches" / search_id_of(captured, 0)):
            told = complaint(mill("compile", "--budget-s", 10))
        assert f"process {os.getpid()} is at it already" in told and f"kill -INT {os.getpid()}" in told

    def test_no_compiler(self, mill: Mill, tmp_path: Path) -> None:
        (tmp_path / "x.cpp").write_text(HONEST)
        without = {"PATH": str(tmp_path / "nothing"), "CXX": ""}
        said = complaint(mill("judge", tmp_path / "x.cpp", "--operator", "rms_norm", **without))
        assert "no C++ compiler" in said and "install" in said
        keep_profile(tmp_path)
        run = mill("compile", "--budget-s", 10, **without)
        assert run.returncode == 2 and "Traceback" not in run.stderr
        assert run.stderr.splitlines()[-1].startswith("mill: no C++ compiler")
        assert not list((tmp_path / "home").glob("searches/*/result.json"))

    @pytest.mark.parametrize(
        ("content", "complains"),
        [
            (b"not json", "cannot be read as JSON"),
            (b"\xff\xfe", "cannot be read as JSON"),
            (b"[" * 100_000, "cannot be read as JSON"),
            (b"3", "expected a list of workloads"),
            (b"[]", "none of its 0 workloads"),
            (b'[{"operator": "rms_norm"}]', "[0]: field 'dtype' is missing"),
            (b'{"workloads": [1]}', "[0]"),
            (b'[{"operator":"rms_norm","dtype":"float32","axes":{"tokens":0,"hidden":8},"inputs":[]}]', "axes.tokens"),
        ],
    )
    def test_corrupt_workloads(self, mill: Mill, tmp_path: Path, content: bytes, complains: str) -> None:
        (tmp_path / "x.cpp").write_text(HONEST)
        (tmp_path / "w.json").write_bytes(content)
        said = complaint(
            mill("judge", tmp_path / "x.cpp", "--operator", "rms_norm", "--workloads", tmp_path / "w.json")
        )
        assert complains in said

    def test_an_unreadable_candidate(self, mill: Mill, tmp_path: Path) -> None:
        (tmp_path / "binary.cpp").write_bytes(b"\xff\x00\xfe")
        (tmp_path / "folder.cpp").mkdir()
        (tmp_path / "notes.txt").write_text("x")
        (tmp_path / "huge.cpp").write_text("/" * (1 << 20) + "/")
        for name in ("binary.cpp", "folder.cpp", "notes.txt", "missing.cpp", "huge.cpp"):
            complaint(mill("judge", tmp_path / name, "--operator", "rms_norm"))

    def test_a_baseline_that_is_not_there(self, mill: Mill, tmp_path: Path) -> None:
        (tmp_path / "x.cpp").write_text(HONEST)
        assert "'magic'" in complaint(
            mill("judge", tmp_path / "x.cpp", "--operator", "rms_norm", "--baseline", "magic")
        )


class TestDisk:
    def test_a_home_that_cannot_be_made(self, mill: Mill, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        assert "name a folder" in complaint(mill("rank", MILL_HOME=str(tmp_path / "file" / "home")))

    @pytest.fixture
    def full_disk(self, tmp_path: Path) -> Iterator[Path]:
        """A file system of 64 KiB with a few bytes left."""
        folder = tmp_path / "full"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
        mounted = shutil.which("mount") and subprocess.run(command, capture_output=True, check=False)
        if not mounted or mounted.returncode != 0:
            pytest.skip("this user may not mount a small file system to fill")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)

    @staticmethod
    def fill(folder: Path) -> None:
        with (folder / "rest").open("wb", buffering=0) as rest, contextlib.suppress(OSError):
            while True:
                rest.write(b"x" * 1024)

    def test_a_full_store_takes_no_half_profile(self, mill: Mill, tmp_path: Path, full_disk: Path) -> None:
        give_keys(tmp_path)
        keep_profile(tmp_path)
        shutil.copytree(tmp_path / "store", full_disk / "store")
        self.fill(full_disk)
        before = sorted(path for path in full_disk.rglob("*") if path.is_file())
        run = mill("serve", "--rounds", "1", MILL_STORE=f"file://{full_disk}/store")
        assert "no room left" in complaint(run) or "no space left" in complaint(run)
        assert sorted(path for path in full_disk.rglob("*") if path.is_file()) == before

    def test_a_full_home_keeps_no_half_file(self, mill: Mill, tmp_path: Path, full_disk: Path) -> None:
        (tmp_path / "store").mkdir()
        keep_profile(tmp_path)
        self.fill(full_disk)
        said = complaint(mill("keys", "init", "--unencrypted", MILL_HOME=str(full_disk)))
        assert "pace" in said and str(full_disk) in said
        assert all(path.stat().st_size for path in full_disk.rglob("*") if path.is_file() and path.name != "lock")


class TestNumbers:
    @pytest.mark.parametrize(
        "command",
        [
            "capture --window-h nan",
            "capture --window-h -1",
            "compile --budget-s 0",
            "compile --budget-s inf",
            "rank --budget-s x",
            "continuous --every-s -1",
            "serve --concurrency 0",
            "serve --requests 1.5",
            "serve --rounds -1",
            "demo --budget-s -5",
            "demo --requests 0",
            "ui --prefect-port 99999999",
            "judge x.cpp --operator rms_norm --range hidden",
            "judge x.cpp --operator rms_norm --range hidden=9..3",
            "judge x.cpp --operator rms_norm --seed -1",
            "compile --seed -1",
            "rollback --channel nightly",
            "rollback --to x",
        ],
    )
    def test_numbers_that_make_no_sense_are_a_usage_error(self, mill: Mill, command: str) -> None:
        run = mill(*command.split())
        assert run.returncode == 2
        (line,) = run.stderr.splitlines()
        assert line.startswith(f"mill {command.split()[0]}: argument --")

    def test_a_very_long_window_is_all_there_is(self, mill: Mill, tmp_path: Path) -> None:
        (tmp_path / "store").mkdir()
        assert "sampling on" in complaint(mill("capture", "--window-h", "1e9"))


class TestOutput:
    @pytest.mark.parametrize("command", [command.name for command in commands.COMMANDS])
    def test_every_command_has_help(self, mill: Mill, command: str) -> None:
        run = mill(command, "--help")
        assert run.returncode == 0 and run.stdout.startswith(f"usage: mill {command}") and run.stderr == ""

    def test_tables_are_valid_json_on_request(self, mill: Mill, tmp_path: Path) -> None:
        keep_profile(tmp_path)
        (tmp_path / "x.py").write_text("def run(x, weight, epsilon, out):\n    out.zero_()\n")
        workload = records.canonical_json([rms_norm(2)])
        (tmp_path / "w.json").write_bytes(workload)
        judge = ["judge", tmp_path / "x.py", "--operator", "rms_norm", "--policy", "screening"]
        Repository(DirectoryStore(tmp_path / "store"), create_keys(tmp_path / "home" / "keys")).initialise()
        found = {}
        for name, arguments in {
            "operators": ["operators"],
            "rank": ["rank"],
            "judge": [*judge, "--workloads", tmp_path / "w.json"],
            "doctor": ["doctor"],
            "figures": ["figures"],
            "registry": ["registry", "doctor"],
            "log": ["registry", "log"],
        }.items():
            run = mill(*arguments, "--json")
            assert run.returncode in ((0, 1) if name == "doctor" else (0,)), (name, run.stderr)
            found[name] = json.loads(run.stdout)
        assert {one["name"] for one in found["operators"]} >= {"rms_norm", "skinny_linear"}
        assert found["rank"][0]["operator"] == "rms_norm" and found["rank"][0]["budget_s"] > 0
        assert found["judge"]["status"] == "incorrect"
        assert {one["what"] for one in found["doctor"]} >= {"compiler", "object store", "sandbox"}
        assert all(one["passed"] for one in found["registry"] if one["essential"])
        assert found["log"] == [], "a registry where nothing was published"
