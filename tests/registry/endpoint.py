"""S3 endpoints on loopback that answer as a test wants: honest ones, liars, and those that drip."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from gristmill.records import sha256_hex
from gristmill.s3_store import Endpoint, S3Store

Answer = Callable[[BaseHTTPRequestHandler], None]
BUCKET = "bucket"


@contextmanager
def endpoint(answer: Answer) -> Iterator[S3Store]:
    """A store whose every read is answered so."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            yield S3Store(Endpoint(BUCKET, "", url, "us-east-1", "key", "secret"))
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Honest:
    """Answers from the files of a folder store, and notes what was asked: the key, and with which condition."""

    folder: Path
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    drip: Callable[[str], bool] = lambda key: False
    """Objects that are sent so slowly that they never end."""
    released: threading.Event = field(default_factory=threading.Event)
    """Ends all dripping."""

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        key = unquote(request.path.split("?")[0]).removeprefix(f"/{BUCKET}/")
        condition = request.headers["If-None-Match"]
        self.asked.append((key, condition))
        if self.drip(key):
            self._drip(request)
        elif not (self.folder / key).is_file():
            self._send(request, 404, b"<Error><Code>NoSuchKey</Code></Error>", "")
        else:
            content = (self.folder / key).read_bytes()
            etag = f'"{sha256_hex(content)}"'
            self._send(request, *((304, b"") if condition == etag else (200, content)), etag)

    def _send(self, request: BaseHTTPRequestHandler, status: int, content: bytes, etag: str) -> None:
        request.send_response(status)
        request.send_header("ETag", etag)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def _drip(self, request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("ETag", '"1"')
        request.send_header("Content-Length", "9000")
        request.end_headers()
        dripping(request, self.released)


def dripping(request: BaseHTTPRequestHandler, released: threading.Event) -> None:
    """A byte now and then, each long before a socket's time-out."""
    request.close_connection = True
    try:
        while not released.wait(0.02):
            request.wfile.write(b" ")
    except OSError:
        pass
