"""The provider process at work: takes orders from one end of a socket pair and answers them, many at once."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from collections.abc import Mapping

from agents.errors import ModelError
from agents.provider import calls, failures, prices
from agents.provider.wire import MAX_FRAME_BYTES, PREFIX, READY, Failure, Fault, Order, Reply, frame
from gristmill import records


async def serve(control: socket.socket, secrets: Mapping[str, str]) -> None:
    """Returns when the other end is closed, or sends what is no order. What is in flight then is given up."""
    reader, writer = await asyncio.open_unix_connection(sock=control, limit=MAX_FRAME_BYTES)
    writer.write(frame(_prepared(secrets)))
    tasks: dict[int, asyncio.Task[None]] = {}
    while (order := await _order(reader)) is not None:
        if order.cancelled:
            if order.id in tasks:
                tasks[order.id].cancel()
            continue
        task = asyncio.create_task(_answer(order, writer, secrets))
        tasks[order.id] = task
        task.add_done_callback(functools.partial(_forget, tasks, order.id))


def _forget(tasks: dict[int, asyncio.Task[None]], number: int, task: asyncio.Task[None]) -> None:
    del tasks[number]


def _prepared(secrets: Mapping[str, str]) -> Reply:
    try:
        calls.prepare()
    except ImportError as error:
        return Reply(READY, failure=Failure(Fault.REFUSED, failures.said(error, secrets)))
    return Reply(READY)


async def _order(reader: asyncio.StreamReader) -> Order | None:
    try:
        (size,) = PREFIX.unpack(await reader.readexactly(PREFIX.size))
        return records.parse(Order, await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def _answer(order: Order, writer: asyncio.StreamWriter, secrets: Mapping[str, str]) -> None:
    reply = await _reply(order, secrets)
    writer.write(frame(reply))
    await writer.drain()


async def _reply(order: Order, secrets: Mapping[str, str]) -> Reply:
    if order.call is None:
        return Reply(order.id, price=prices.price_of(order.price_of) if order.price_of else None)
    try:
        return Reply(order.id, answer=await calls.complete(order.call, secrets))
    except ModelError as error:
        return Reply(order.id, failure=failures.packed(error))
    except asyncio.CancelledError:
        raise
    except Exception as error:  # a bug here costs one call its answer, not all of them theirs
        return Reply(order.id, failure=Failure(Fault.UNAVAILABLE, failures.said(error, secrets)))


def run(control_descriptor: int, secrets: Mapping[str, str]) -> None:
    """The life of the process. Nothing is waited for at its end: whoever could want an answer has gone."""
    os.environ.update(secrets)
    asyncio.run(_until_closed(control_descriptor, secrets))


async def _until_closed(control_descriptor: int, secrets: Mapping[str, str]) -> None:
    control = socket.socket(fileno=control_descriptor)
    control.setblocking(False)
    await serve(control, secrets)
    os._exit(0)
