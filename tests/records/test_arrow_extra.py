"""Columns are an extra: what happens without it, and what its kernels cost whom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""
KERNELS = """
import klamm.records.arrow as arrow
from klamm.records.columns import copy_fields, copy_headers, scan_batches
from klamm.records.packing import hash_keys, measure_headers, plan_batches, write_records
kernels = [copy_fields, copy_headers, scan_batches, hash_keys, measure_headers, plan_batches, write_records]
"""


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("missing", ["pyarrow", "numpy", "numba"])
def test_the_client_works_without_the_extra_and_says_what_is_missing(missing: str) -> None:
    code = WITHOUT.format(missing=missing) + (
        "import klamm, klamm.aio\n"
        "klamm.Producer, klamm.Consumer, klamm.Admin, klamm.aio.Consumer\n"
        "from klamm.records.fetched import FetchedRecords, data_batches\n"
        "try:\n"
        "    import klamm.records.arrow\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    expected = f"Arrow columns need a package that is missing ({missing}): pip install 'klamm[arrow]'\n"
    assert run(code) == expected


def test_nobody_pays_for_columns_who_does_not_use_them() -> None:
    code = "import sys, klamm, klamm.aio\nklamm.Producer, klamm.Consumer, klamm.aio.Consumer\n"
    code += "print({'numba', 'numpy', 'pyarrow'} & set(sys.modules))\n"
    assert run(code) == "set()\n"


SIGNATURES = "print([len(k.signatures) for k in kernels], any(k._can_compile for k in kernels))\n"


def test_everything_is_compiled_for_its_types_at_import() -> None:
    assert run(KERNELS + SIGNATURES) == "[1, 1, 1, 1, 1, 1, 1] False\n"


@pytest.mark.long
def test_what_one_process_compiles_the_next_one_loads(tmp_path: Path) -> None:
    code = KERNELS + SIGNATURES + "print([sum(k.stats.cache_hits.values()) for k in kernels])\n"
    compiled = "[1, 1, 1, 1, 1, 1, 1] False\n"
    assert run(code, NUMBA_CACHE_DIR=str(tmp_path)) == compiled + "[0, 0, 0, 0, 0, 0, 0]\n"
    assert run(code, NUMBA_CACHE_DIR=str(tmp_path)) == compiled + "[1, 1, 1, 1, 1, 1, 1]\n"


@pytest.mark.long
def test_without_a_directory_to_keep_kernels_each_process_compiles() -> None:
    code = "import numba.core.caching\nnumba.core.caching.CacheImpl._locator_classes = []\n"
    code += KERNELS + "print([len(k.signatures) for k in kernels])\n"
    assert run(code) == "[1, 1, 1, 1, 1, 1, 1]\n"
