"""CRC32C, from the extension module of the `crc32c` package.

The package itself reads its own version through importlib.metadata when imported, which brings in the
whole of `email`: 35 ms and 7 MB, a tenth of a broker's start. So the extension inside it is loaded alone.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crc32c import crc32c as crc32c
else:

    def _load():
        package = find_spec("crc32c")
        spec = package and PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
        if not spec:
            from crc32c import crc32c  # a version that is made otherwise: slower to import, and the same

            return crc32c
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.crc32c

    crc32c = _load()
