"""Names of topics and groups that the shell completes, of the cluster that is meant.

Whoever presses the tab key waits, so a cluster that does not answer soon has no names. Names come from the
cluster, and shells run what they complete: a name with a sign that means something to a shell is not offered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.client.plain.admin import Admin

MOST_WAIT_S = 2.0

_HARMLESS = re.compile(r"[A-Za-z0-9._@%+=,/-]+")


def topic_names(ctx: Any, incomplete: str) -> list[str]:
    return _names(
        ctx, incomplete, lambda admin: admin.list_topics(include_internal=incomplete.startswith("_"))
    )


def group_names(ctx: Any, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, lambda admin: [each.group for each in admin.list_groups()])


def _names(ctx: Any, incomplete: str, ask: Callable[[Admin], Iterable[str]]) -> list[str]:
    from klamm.cli.connecting import cluster_of

    given = ctx.params
    try:
        cluster = cluster_of(given.get("bootstrap"), given.get("profile"), given.get("settings"), MOST_WAIT_S)
        with cluster.admin() as admin:
            found = list(ask(admin))
    except Exception:  # whatever it is, a complaint would stand in the middle of the line that is typed
        return []
    return [name for name in found if name.startswith(incomplete) and _HARMLESS.fullmatch(name)]
