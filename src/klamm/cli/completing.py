"""Names that the shell completes: topics and groups of the cluster that is meant, profiles.

Whoever presses the tab key waits, so a cluster that does not answer soon has no names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MOST_WAIT_S = 2.0


def topic_names(ctx: Any, incomplete: str) -> list[str]:
    return _names(
        ctx, incomplete, lambda admin: admin.list_topics(include_internal=incomplete.startswith("_"))
    )


def group_names(ctx: Any, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, lambda admin: [each.group for each in admin.list_groups()])


def profile_names(incomplete: str) -> list[str]:
    from klamm.cli.profiles import Profiles

    try:
        return [name for name in Profiles.read().profiles if name.startswith(incomplete)]
    except Exception:
        return []


def _names(ctx: Any, incomplete: str, ask: Callable[[Any], list[str]]) -> list[str]:
    from klamm.cli.connecting import cluster_of

    given = ctx.params
    try:
        cluster = cluster_of(given.get("bootstrap"), given.get("profile"), given.get("settings"), MOST_WAIT_S)
        with cluster.admin() as admin:
            return [name for name in ask(admin) if name.startswith(incomplete)]
    except Exception:  # whatever it is, a complaint would stand in the middle of the line that is typed
        return []
