"""Compiles numba kernels: for fixed types, when their module is imported, and never later.

Compiled code is cached on disk, beside the source or in the user's cache directory, so that only the first
process on a machine compiles; if neither directory can be written, each process compiles for itself. Helpers
must be in the same file as the kernels that use them: numba checks only that file to tell whether its cache
is stale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

try:
    import numba
    import numpy as numpy
    import pyarrow as pyarrow
except ImportError as error:
    raise ImportError(
        f"Arrow columns need a package that is missing ({error.name}): pip install 'klamm[arrow]'",
        name=error.name,
    ) from error

Array: TypeAlias = "numpy.ndarray[Any, Any]"
Function = TypeVar("Function", bound=Callable[..., Any])

BYTES = numba.types.Array(numba.uint8, 1, "C")
READ_ONLY_BYTES = numba.types.Array(numba.uint8, 1, "C", readonly=True)
READ_ONLY_UINT32S = numba.types.Array(numba.uint32, 1, "C", readonly=True)
INT32S = numba.types.Array(numba.int32, 1, "C")
INT64S = numba.types.Array(numba.int64, 1, "C")
READ_ONLY_INT64S = numba.types.Array(numba.int64, 1, "C", readonly=True)
INT64_TABLE = numba.types.Array(numba.int64, 2, "C")
INT64 = numba.int64


# Kernels make no arrays and keep none, so they need no reference counts of arrays, which would make a scan
# three times as slow. Helpers must be inlined, or each call copies the descriptors of its arrays.
_OPTIONS = {"nogil": True, "_nrt": False}
_njit: Any = numba.njit


def kernel(result: Any, *arguments: Any) -> Callable[[Function], Function]:
    """Compile a function for these types. It runs without the interpreter lock."""
    signature = result(*arguments)

    def compile_now(function: Function) -> Function:
        try:
            return _njit(signature, cache=True, **_OPTIONS)(function)  # type: ignore[no-any-return]
        except (RuntimeError, OSError):  # no directory for the cache, or no room in it
            return _njit(signature, **_OPTIONS)(function)  # type: ignore[no-any-return]

    return compile_now


def inlined(function: Function) -> Function:
    """Compile a helper of kernels so that it is inlined into them."""
    return _njit(forceinline=True, **_OPTIONS)(function)  # type: ignore[no-any-return]
