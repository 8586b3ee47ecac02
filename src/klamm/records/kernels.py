"""How our numba kernels are compiled: for fixed types, when their module is imported, and never later.

Compiled code is kept on disk, beside the source or in the user's cache directory, so that only the first
process on a machine pays for compiling; where neither can be written, each process compiles for itself.
Helpers must stand in the file of the kernels that use them: numba looks at that file alone to tell whether
what it kept is still right.
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


# Kernels make no arrays and keep none, so counting references to them would only cost: a scan three times as
# slow. Helpers must become part of their kernel, or each call copies the descriptions of its arrays.
_OPTIONS = {"nogil": True, "_nrt": False}
_njit: Any = numba.njit


def kernel(result: Any, *arguments: Any) -> Callable[[Function], Function]:
    """Compile a function for these types, to run without the interpreter's lock."""
    signature = result(*arguments)

    def compile_now(function: Function) -> Function:
        try:
            return _njit(signature, cache=True, **_OPTIONS)(function)  # type: ignore[no-any-return]
        except (RuntimeError, OSError):  # no directory for the cache, or no room in it
            return _njit(signature, **_OPTIONS)(function)  # type: ignore[no-any-return]

    return compile_now


def inlined(function: Function) -> Function:
    """A helper of kernels, compiled as a part of them."""
    return _njit(forceinline=True, **_OPTIONS)(function)  # type: ignore[no-any-return]
