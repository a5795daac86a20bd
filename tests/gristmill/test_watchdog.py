"""The watchdog hands on what work returns or raises, and leaves behind what does not come back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from gristmill import watchdog as module
from gristmill.watchdog import OverdueError, Watchdog


@pytest.fixture
def watchdog(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watchdog]:
    monkeypatch.setattr(module, "TICK_S", 0.01)
    with contextlib.closing(Watchdog()) as made:
        yield made


def test_work_is_done_on_one_thread_of_its_own(watchdog: Watchdog) -> None:
    threads = [watchdog.run(lambda beat: threading.current_thread()) for _ in range(3)]
    assert len(set(threads)) == 1
    assert threads[0] is not threading.current_thread()
    watchdog.close()
    threads[0].join(60)
    assert not threads[0].is_alive()


def test_what_work_raises_is_raised(watchdog: Watchdog) -> None:
    with pytest.raises(ZeroDivisionError):
        watchdog.run(lambda beat: 1 // 0)
    with pytest.raises(KeyboardInterrupt):
        watchdog.run(lambda beat: _interrupted())
    assert watchdog.run(lambda beat: 4) == 4


def test_what_hangs_is_left_behind_and_the_next_gets_another_thread(
    watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TICKS", 3)
    let_go = threading.Event()
    left: list[threading.Thread] = []

    def hang(beat: Callable[[], None]) -> None:
        left.append(threading.current_thread())
        let_go.wait(60)

    with pytest.raises(OverdueError, match="has not come back"):
        watchdog.run(hang)
    assert left[0].is_alive()
    monkeypatch.setattr(module, "TICKS", 1000)
    assert watchdog.run(lambda beat: threading.current_thread()) is not left[0]
    let_go.set()
    left[0].join(60)
    assert not left[0].is_alive()  # it had been told to end


def test_a_beat_gives_all_the_time_again(watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[Callable[[], None]] = []
    ticked = threading.Event()

    class Beating(module._Job[int]):
        """Beats at each tick, and has ticked after more of them than it has without a beat."""

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "ticks" and value:
                beats.append(self.beat)
                self.beat()
                if len(beats) == 5:
                    ticked.set()

    monkeypatch.setattr(module, "_Job", Beating)
    monkeypatch.setattr(module, "TICKS", 2)
    assert watchdog.run(lambda beat: ticked.wait(60))


def _interrupted() -> None:
    raise KeyboardInterrupt
