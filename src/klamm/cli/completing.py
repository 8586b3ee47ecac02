"""Names of topics that the shell completes, of the cluster that is meant.

Whoever presses the tab key waits, so a cluster that does not answer soon has no names.
"""

from __future__ import annotations

from typing import Any

MOST_WAIT_S = 2.0


def topic_names(ctx: Any, incomplete: str) -> list[str]:
    from klamm.cli.connecting import cluster_of

    given = ctx.params
    try:
        cluster = cluster_of(given.get("bootstrap"), given.get("profile"), given.get("settings"), MOST_WAIT_S)
        with cluster.admin() as admin:
            found = admin.list_topics(include_internal=incomplete.startswith("_"))
    except Exception:  # whatever it is, a complaint would stand in the middle of the line that is typed
        return []
    return [name for name in found if name.startswith(incomplete)]
