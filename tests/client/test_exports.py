"""What `klamm` and `klamm.aio` name: all that a user needs, and nothing that costs before it is used."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import klamm
import klamm.aio
from klamm.client import errors
from klamm.client.admin import types

EXPENSIVE = ("asyncio", "uvloop", "numpy", "numba", "pyarrow", "ssl", "threading", "klamm.client")


def run(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("statement", ["import klamm", "import klamm, klamm.aio"])
def test_importing_alone_costs_nothing(statement):
    found = run(f"{statement}\nimport sys\nprint([one for one in {EXPENSIVE} if one in sys.modules])")
    assert found == "[]"


def test_the_plain_client_needs_no_columns():
    program = (
        "import klamm\nklamm.Producer, klamm.Consumer, klamm.Admin\nimport sys\n"
        "print([one for one in ('numpy', 'numba', 'pyarrow') if one in sys.modules])"
    )
    assert run(program) == "[]"


@pytest.mark.parametrize("module", [klamm, klamm.aio], ids=lambda one: one.__name__)
def test_every_name_is_there_and_type_checkers_know_the_same(module):
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert set(module.__all__) <= set(dir(klamm)) | set(module._HOMES)
    with pytest.raises(AttributeError, match="has no attribute 'Produser'"):
        module.Produser  # noqa: B018
    told = {}
    tree = ast.parse(Path(module.__file__).read_text())
    for block in [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]:
        for line in block.body:
            assert isinstance(line, ast.ImportFrom)
            told |= {one.asname: (line.module, one.name) for one in line.names}
    assert set(told) == set(module.__all__)
    for name, (home, original) in told.items():
        assert getattr(import_module(home), original) is getattr(module, name)


def test_every_error_can_be_caught_by_its_name():
    classes = {
        name
        for name, one in vars(errors).items()
        if inspect.isclass(one) and issubclass(one, errors.ClientError) and one.__module__ == errors.__name__
    }
    # Caught as RecordTooLarge, as the broker's own word for it is.
    assert classes - set(klamm.__all__) == {"LocalRecordTooLarge"}


def test_every_value_of_the_admin_has_a_name():
    classes = {
        name
        for name, one in vars(types).items()
        if inspect.isclass(one) and one.__module__ == types.__name__ and not name.startswith("_")
    }
    assert classes - set(klamm.__all__) == set()
