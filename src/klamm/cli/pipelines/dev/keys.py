"""Single keys from the terminal, without Enter."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


def has_keys() -> bool:
    """Whether this process may read keys: it is on a terminal, in the foreground."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return False


@contextmanager
def keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Call `pressed`, in a thread, with each key until the end of the context. Ctrl-C stays a signal."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    waker, wakes = os.pipe()

    def read() -> None:
        waiting = select.poll()
        waiting.register(terminal, select.POLLIN)
        waiting.register(waker, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in waiting.poll()}
            if waker in ready:
                return
            data = os.read(terminal, 64)
            if not data:
                return
            for key in data.decode(errors="ignore"):
                pressed(key)

    def again(number: int, frame: object) -> None:
        with suppress(termios.error):
            tty.setcbreak(terminal)

    tty.setcbreak(terminal)
    # After Ctrl-Z and fg the terminal is as the shell has left it.
    handler = signal.signal(signal.SIGCONT, again)
    reader = threading.Thread(target=read, name="klamm-dev-keys", daemon=True)
    reader.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGCONT, handler)
        os.write(wakes, b".")
        reader.join()
        os.close(waker)
        os.close(wakes)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
