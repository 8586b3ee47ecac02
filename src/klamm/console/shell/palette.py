"""The palette that ⌘K opens: it finds by the JSON API, in the browser."""

from __future__ import annotations

from nicegui.element import Element


class Palette(Element, component="klamm_palette.js"):
    """The palette. It is part of the frame, and not seen until it is opened."""
