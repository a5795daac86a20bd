"""All requests count, from any thread, however few are kept."""

from __future__ import annotations

import threading

from gristmill.request_log import FinishedRequest, RequestLog


def test_weights_add_up_to_all_requests_of_all_threads() -> None:
    log = RequestLog(capacity=10)

    def serve(first: int) -> None:
        for number in range(first, first + 500):
            log.add(FinishedRequest(number + 1, 1, number))

    threads = [threading.Thread(target=serve, args=(first,)) for first in (0, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = log.take()
    assert len(kept) == 10
    assert sum(weight for _, weight in kept) == 1000
    assert log.take() == []


def test_while_there_is_room_each_stands_for_itself() -> None:
    log = RequestLog(capacity=3)
    requests = [FinishedRequest(10, 4, 5, cached_tokens=8, drafts=2, accepted=(2, 1)), FinishedRequest(1, 1, 6)]
    for request in requests:
        log.add(request)
    assert log.take() == [(request, 1) for request in requests]
