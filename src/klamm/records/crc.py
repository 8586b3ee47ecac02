"""CRC32C, from the extension module of the `crc32c` package.

When the package is imported, it reads its own version through importlib.metadata, which imports all of
`email`: 35 ms and 7 MB, a tenth of a broker's start. So only the extension module inside the package is
loaded.
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
            from crc32c import crc32c  # another version of the package: the same, but slower to import

            return crc32c
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.crc32c

    crc32c = _load()
