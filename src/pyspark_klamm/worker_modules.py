"""Lets a Python worker that is reused forget the modules of a project whose files may change.

Spark keeps its Python workers for the next task. A function that imports a module inside of a task would get
the module as it was when that worker first imported it. If the variable FORGOTTEN_FOLDERS names folders, a
worker forgets after each task what it has imported from there.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable

FORGOTTEN_FOLDERS = "KLAMM_FORGOTTEN_FOLDERS"
"""An environment variable of workers: folders, separated as in PATH."""

_OURS = frozenset({"klamm", "pyspark_klamm"})


def forget_modules() -> None:
    """Forget the modules from the folders that the environment names."""
    folders = [each for each in os.environ.get(FORGOTTEN_FOLDERS, "").split(os.pathsep) if each]
    if not folders:
        return
    # A file may be saved twice in the second that bytecode is dated by.
    sys.dont_write_bytecode = True
    # Forgotten all at once at the end: the path of a nested package looks its parent up.
    for name in [name for name, module in list(sys.modules.items()) if _is_forgotten(name, module, folders)]:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def _is_forgotten(name: str, module: object, folders: Iterable[str]) -> bool:
    if name.partition(".")[0] in _OURS:
        return False
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    return any(_is_below(place, folders) for place in places if place)


def _is_below(place: str, folders: Iterable[str]) -> bool:
    inside = os.path.join(os.path.abspath(place), "")
    is_installed = inside.startswith(os.path.join(sys.prefix, ""))
    return not is_installed and inside.startswith(tuple(os.path.join(folder, "") for folder in folders))
