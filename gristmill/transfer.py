"""Transfers that end: an exchange with a server has one deadline, however slowly the server drips.

A time-out of a socket starts anew with every byte. So what bounds a transfer is a timer that shuts down the sockets it
uses, which ends a read in progress on whichever thread.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

START_S = 20.0
"""What every transfer may take, whatever its size: connecting, retries, and the store's own work."""
SLOWEST_BYTES_S = 1 << 20
"""A store or network that is slower than this is one that does not answer."""

_ongoing = threading.local()


class Transfer:
    """The sockets of one exchange, which is over when its time is."""

    def __init__(self) -> None:
        self.expired = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []

    def add(self, used: socket.socket) -> None:
        """Notes a socket; shuts it down at once if the time is over."""
        with self._lock:
            self._sockets.append(used)
            if self.expired:
                _shut_down(used)

    def expire(self) -> None:
        with self._lock:
            self.expired = True
            for used in self._sockets:
                _shut_down(used)


def limit_s(size_bytes: int) -> float:
    """How long the transfer of so many bytes may take."""
    return START_S + size_bytes / SLOWEST_BYTES_S


@contextlib.contextmanager
def within(seconds: float) -> Iterator[Transfer]:
    """What this thread sends and receives inside, through a client that is `bound`, is cut off after so long.

    What is cut off fails as if the server had hung up, or looks complete if no length was announced: so ask whether the
    transfer has `expired` before believing anything.
    """
    transfer = Transfer()
    timer = threading.Timer(seconds, transfer.expire)
    timer.daemon = True
    timer.start()
    _ongoing.transfer = transfer
    try:
        yield transfer
    finally:
        del _ongoing.transfer
        timer.cancel()


def bound(client: Any) -> None:
    """Makes the connections of a boto3 client tell the ongoing transfer of their sockets.

    botocore offers no place for that, so this replaces the kinds of connection that it makes.
    """
    from botocore import awsrequest

    class Noted:
        sock: socket.socket | None

        def connect(self) -> None:
            super().connect()  # type: ignore[misc]
            _note(self.sock)

        def request(self, *arguments: Any, **options: Any) -> None:
            _note(self.sock)  # a kept connection, which is not connected again
            super().request(*arguments, **options)  # type: ignore[misc]

    kinds = client._endpoint.http_session._pool_classes_by_scheme
    for scheme, kind in {"http": awsrequest.AWSHTTPConnectionPool, "https": awsrequest.AWSHTTPSConnectionPool}.items():
        noted = type(f"Noted{kind.ConnectionCls.__name__}", (Noted, kind.ConnectionCls), {})
        kinds[scheme] = type(f"Noted{kind.__name__}", (kind,), {"ConnectionCls": noted})


def _note(used: socket.socket | None) -> None:
    transfer = getattr(_ongoing, "transfer", None)
    if transfer is not None and used is not None:
        transfer.add(used)


def _shut_down(used: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        used.shutdown(socket.SHUT_RDWR)
