"""Sizes and counts as people read them: those of `operating/`, by the name that commands know."""

from klamm.operating.units import count_text as count_text
from klamm.operating.units import printable as printable
from klamm.operating.units import several as several
from klamm.operating.units import size_text as size_text
