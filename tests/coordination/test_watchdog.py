"""A process whose event loop hangs ends; one whose loop runs, or that was paused, does not."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading

from klamm.coordination.watchdog import EXIT_CODE, LoopWatchdog

# The loop runs for several timeouts, then it hangs.
HANGING = """
    import asyncio, signal, sys
    from klamm.coordination.watchdog import LoopWatchdog

    async def main():
        watchdog = LoopWatchdog(0.6)
        watchdog.start()
        await asyncio.sleep(1.5)
        print("hanging now", flush=True)
        signal.pause()

    asyncio.run(main())
"""


def test_a_process_ends_when_its_loop_hangs_and_not_before() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(HANGING)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == EXIT_CODE
    assert done.stdout == "hanging now\n"
    assert "event loop has hung" in done.stderr


PAUSED = """
    import asyncio, sys
    from klamm.coordination.watchdog import LoopWatchdog

    async def main():
        watchdog = LoopWatchdog(0.6)
        watchdog.start()
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(line, end="", flush=True)
        watchdog.stop()

    asyncio.run(main())
"""


def test_a_process_that_was_paused_goes_on() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PAUSED)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("before\n")
    process.stdin.flush()
    assert process.stdout.readline() == "before\n"
    process.send_signal(signal.SIGSTOP)
    threading.Event().wait(1.5)  # the pause itself
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate("after\n", timeout=60)
    assert (out, process.returncode) == ("after\n", 0)


def test_a_loop_that_is_paused_does_not_hang_and_one_that_hangs_afterwards_does() -> None:
    stuck = threading.Event()

    async def main() -> None:
        watchdog = LoopWatchdog(0.06, stuck.set)
        watchdog.start()
        watchdog.pause(lambda: stuck.wait(1.0))  # the pause itself
        assert not stuck.is_set()
        assert stuck.wait(30)
        watchdog.stop()

    asyncio.run(main())


def test_a_watchdog_that_was_stopped_says_nothing() -> None:
    stuck = threading.Event()

    async def main() -> None:
        others = set(threading.enumerate())  # brokers of other tests in this process have watchdogs, too
        watchdog = LoopWatchdog(0.06, stuck.set)
        watchdog.start()
        watchdog.stop()
        (thread,) = [each for each in set(threading.enumerate()) - others if each.name == "klamm-watchdog"]
        thread.join(30)
        assert not thread.is_alive()

    asyncio.run(main())
    assert not stuck.is_set()
