"""A change of the cluster: what is written to the store, and what becomes of the image.

A store takes transactions of limited size, so the operations of a change come in units. A unit is written
whole or not at all. A change that fits into one transaction is written whole; a larger one is written unit by
unit, in order, and a broker that reads the store after a crash in between must be able to go on from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from klamm.cluster.image import ClusterImage, ImageDelta
from klamm.coordination.store import Operation

Unit: TypeAlias = tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """Store operations that belong together, what they change, and the image after them."""

    units: tuple[Unit, ...]
    delta: ImageDelta
    image: ClusterImage

    @classmethod
    def of(cls, image: ClusterImage, units: Iterable[Unit], delta: ImageDelta) -> Change:
        """A change of `image`."""
        return cls(tuple(units), delta, image.with_delta(delta))

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(chain.from_iterable(self.units))
