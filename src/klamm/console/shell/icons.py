"""The icons of the console: strokes on a grid of 24, drawn with the colour of the text."""

from __future__ import annotations

_PATHS = {
    "overview": '<path d="M3 12h4l3-7 4 14 3-7h4"/>',
    "topics": '<path d="M4 6h16M4 12h16M4 18h10"/>',
    "groups": '<circle cx="8" cy="8" r="3"/><circle cx="17" cy="9" r="2.4"/><path d="M2.5 19c.6-3.4 2.7-5 5.5-5s4.900 1.600 5.500 5M15 14.500c3.300-.6 5.600.9 6.500 4"/>',  # noqa: E501
    "pipelines": '<circle cx="5" cy="6" r="2"/><circle cx="5" cy="18" r="2"/><circle cx="19" cy="12" r="2"/><path d="M7 6c6 0 4 6 10 6M7 18c6 0 4-6 10-6"/>',  # noqa: E501
    "brokers": '<rect x="4" y="4" width="16" height="6" rx="1.500"/><rect x="4" y="14" width="16" height="6" rx="1.500"/><path d="M8 7h.01M8 17h.01"/>',  # noqa: E501
    "metrics": '<path d="M4 20V4M4 20h16M8 16l4-5 3 3 5-7"/>',
    "api": '<path d="M8 7l-5 5 5 5M16 7l5 5-5 5"/>',
    "system": '<circle cx="12" cy="12" r="8"/><path d="M12 4a8 8 0 0 1 0 16z" fill="currentColor"/>',
    "light": '<circle cx="12" cy="12" r="4"/><path d="M12 3v2M12 19v2M3 12h2M19 12h2M5.600 5.600l1.400 1.400M17 17l1.400 1.400M5.600 18.400l1.400-1.400M17 7l1.400-1.400"/>',  # noqa: E501
    "dark": '<path d="M20 14.500A8 8 0 0 1 9.500 4a8 8 0 1 0 10.500 10.500z"/>',
    "fold": '<path d="M14 6l-6 6 6 6M19 6v12"/>',
    "leave": '<path d="M10 4H5v16h5M14 8l4 4-4 4M18 12H9"/>',
    "search": '<circle cx="11" cy="11" r="6"/><path d="M20 20l-4.500-4.500"/>',
}


def icon(name: str, classes: str = "") -> str:
    """The markup of an icon. It means nothing by itself: a word stands beside it."""
    return f'<svg class="k-icon {classes}" viewBox="0 0 24 24" aria-hidden="true">{_PATHS[name]}</svg>'
