"""The Grafana dashboard of a cluster: JSON for Grafana's import, made from the names in metrics/names.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from klamm.metrics import names
from klamm.metrics.text import Family

SCHEMA_VERSION = 39
"""Of Grafana 10 and later, which read older ones, too."""

WIDTH = 24
PANELS_IN_A_ROW = 3
HEIGHT = 8
STAT_HEIGHT = 4

DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
BROKERS = 'job=~"$job",instance=~"$broker"'
"""Chooses the brokers; a cluster as a whole is chosen by its job alone."""
CLUSTER = 'job=~"$job"'
TOPICS = f'{BROKERS},topic=~"$topic"'
GROUPS = f'{CLUSTER},topic=~"$topic"'
LEGEND_OF_BROKER = "{{instance}}"


class Query(NamedTuple):
    expression: str
    legend: str


class Panel(NamedTuple):
    title: str
    unit: str
    queries: Sequence[Query]
    description: str = ""
    bad_from: float | None = None
    """A single number, which is red from this value on; None for a graph over time."""
    bad_unless: float | None = None
    """A single number, which is red if it is another one."""

    @property
    def is_number(self) -> bool:
        return self.bad_from is not None or self.bad_unless is not None


def _rate(family: Family, selector: str, by: str) -> str:
    return f"sum by ({by}) (rate({family.name}{{{selector}}}[$__rate_interval]))"


def _by_topic(title: str, unit: str, family: Family) -> Panel:
    return Panel(title, unit, [Query(_rate(family, TOPICS, "topic"), "{{topic}}")], family.help)


def _of_brokers(title: str, unit: str, family: Family) -> Panel:
    return Panel(title, unit, [Query(f"{family.name}{{{BROKERS}}}", LEGEND_OF_BROKER)], family.help)


def _times(title: str, request: str) -> Panel:
    selector = f'{BROKERS},request="{request}"'
    return Panel(
        title,
        "ms",
        [
            Query(
                f'max by (quantile) ({names.REQUEST_TIMES.name}{{{selector},quantile=~"0.5|0.99|0.999"}})',
                "{{quantile}}",
            )
        ],
        "Of the slowest broker. " + names.REQUEST_TIMES.help,
    )


def _number(title: str, expression: str, text: str, **bad: float) -> Panel:
    return Panel(title, "short", [Query(expression, "")], text, **bad)


HEALTH = (
    _number(
        "Brokers", f"count({names.START_TIME.name}{{{CLUSTER}}})", "Brokers that are scraped.", bad_from=1e9
    ),
    _number(
        "Controllers",
        f"sum({names.ACTIVE_CONTROLLER.name}{{{CLUSTER}}})",
        names.ACTIVE_CONTROLLER.help,
        bad_unless=1,
    ),
    _number(
        "Partitions without a leader",
        f"sum({names.OFFLINE_PARTITIONS.name}{{{CLUSTER}}})",
        names.OFFLINE_PARTITIONS.help,
        bad_from=1,
    ),
    _number(
        "Under-replicated partitions",
        f"sum({names.UNDER_REPLICATED.name}{{{CLUSTER}}})",
        names.UNDER_REPLICATED.help,
        bad_from=1,
    ),
    _number(
        "Partitions below min.insync.replicas",
        f"sum({names.UNDER_MIN_ISR.name}{{{CLUSTER}}})",
        names.UNDER_MIN_ISR.help,
        bad_from=1,
    ),
    _number(
        "Log directories that failed",
        f"sum({names.OFFLINE_DIRECTORIES.name}{{{CLUSTER}}})",
        names.OFFLINE_DIRECTORIES.help,
        bad_from=1,
    ),
)

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    ("Health", HEALTH),
    (
        "Throughput",
        (
            _by_topic("Records in", "cps", names.MESSAGES_IN),
            _by_topic("Bytes in", "Bps", names.BYTES_IN),
            _by_topic("Bytes out", "Bps", names.BYTES_OUT),
            Panel(
                "Replication",
                "Bps",
                [
                    Query(_rate(names.REPLICATION_BYTES_IN, BROKERS, "instance"), "{{instance}} in"),
                    Query(_rate(names.REPLICATION_BYTES_OUT, BROKERS, "instance"), "{{instance}} out"),
                ],
            ),
            _by_topic("Failed produces", "reqps", names.FAILED_PRODUCES),
            _by_topic("Failed fetches", "reqps", names.FAILED_FETCHES),
        ),
    ),
    (
        "Requests",
        (
            Panel(
                "Requests",
                "reqps",
                [
                    Query(
                        f"sum by (request) (rate({names.REQUEST_TIMES.name}_count"
                        f'{{{BROKERS},request!="Fetch"}}[$__rate_interval]))',
                        "{{request}}",
                    )
                ],
            ),
            _times("Produce", "Produce"),
            _times("Fetch by consumers (it waits for records)", "FetchConsumer"),
            _of_brokers("Connections", "short", names.CONNECTIONS),
            Panel(
                "New connections",
                "cps",
                [
                    Query(_rate(names.ACCEPTED, BROKERS, "instance"), LEGEND_OF_BROKER),
                    Query(_rate(names.REFUSED, BROKERS, "instance"), "{{instance}} refused"),
                ],
            ),
            Panel(
                "Event loop: how late, p99",
                "s",
                [Query(f'{names.LOOP_LAG.name}{{{BROKERS},quantile="0.99"}}', LEGEND_OF_BROKER)],
                names.LOOP_LAG.help,
            ),
        ),
    ),
    (
        "Consumer groups",
        (
            Panel(
                "Lag",
                "short",
                [
                    Query(
                        f"sum by (consumergroup, topic) ({names.GROUP_LAG.name}{{{GROUPS}}})",
                        "{{consumergroup}} {{topic}}",
                    )
                ],
                names.GROUP_LAG.help,
            ),
            Panel(
                "Committed records",
                "cps",
                [
                    Query(
                        "sum by (consumergroup, topic) "
                        f"(rate({names.GROUP_OFFSET.name}{{{GROUPS}}}[$__rate_interval]))",
                        "{{consumergroup}} {{topic}}",
                    )
                ],
            ),
            Panel(
                "Members",
                "short",
                [
                    Query(
                        f"sum by (consumergroup) ({names.GROUP_MEMBERS.name}{{{CLUSTER}}})",
                        "{{consumergroup}}",
                    )
                ],
            ),
        ),
    ),
    (
        "Replicas",
        (
            _of_brokers("Partitions led", "short", names.LEADERS),
            _of_brokers("Replicas", "short", names.PARTITIONS),
            Panel(
                "Changes of ISRs",
                "cps",
                [
                    Query(_rate(names.ISR_SHRINKS, BROKERS, "instance"), "{{instance}} shrinks"),
                    Query(_rate(names.ISR_EXPANDS, BROKERS, "instance"), "{{instance}} expands"),
                ],
            ),
        ),
    ),
    (
        "Machine",
        (
            Panel(
                "CPU cores", "short", [Query(_rate(names.CPU_SECONDS, BROKERS, "instance"), LEGEND_OF_BROKER)]
            ),
            _of_brokers("Memory", "bytes", names.RESIDENT_BYTES),
            Panel(
                "Disk left",
                "percentunit",
                [
                    Query(
                        f"{names.DISK_FREE.name}{{{BROKERS}}} / {names.DISK_SIZE.name}{{{BROKERS}}}",
                        "{{instance}} {{logdirectory}}",
                    )
                ],
            ),
            Panel(
                "Size of topics",
                "bytes",
                [Query(f"sum by (topic) ({names.LOG_SIZE.name}{{{TOPICS}}})", "{{topic}}")],
                "All replicas together.",
            ),
            Panel(
                "Open files",
                "percentunit",
                [
                    Query(
                        f"{names.OPEN_DESCRIPTORS.name}{{{BROKERS}}}"
                        f" / {names.MOST_DESCRIPTORS.name}{{{BROKERS}}}",
                        LEGEND_OF_BROKER,
                    )
                ],
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, of_row in ROWS:
        panels.append(_heading(title, top))
        top += 1
        in_a_row = len(of_row) if of_row[0].is_number else PANELS_IN_A_ROW
        height = STAT_HEIGHT if of_row[0].is_number else HEIGHT
        width = WIDTH // in_a_row
        for index, panel in enumerate(of_row):
            column, line = index % in_a_row, index // in_a_row
            place = {"x": column * width, "y": top + line * height, "w": width, "h": height}
            panels.append(_panel(panel, place))
        top += -(-len(of_row) // in_a_row) * height
    for number, each in enumerate(panels, 1):
        each["id"] = number
    return {
        "title": "Klamm",
        "uid": "klamm",
        "tags": ["klamm", "kafka"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _heading(title: str, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
    return {"type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.is_number:
        defaults["thresholds"] = {"mode": "absolute", "steps": _steps(panel)}
    else:
        defaults["min"] = 0
        defaults["custom"] = {"fillOpacity": 10, "showPoints": "never"}
    return {
        "type": "stat" if panel.is_number else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": DATA_SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}}
        if panel.is_number
        else {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query.expression, "legendFormat": query.legend}
            for index, query in enumerate(panel.queries)
        ],
    }


def _steps(panel: Panel) -> list[dict[str, Any]]:
    """From which values on a number has which colour."""
    if panel.bad_unless is not None:
        wanted = panel.bad_unless
        return [
            {"color": "red", "value": None},
            {"color": "green", "value": wanted},
            {"color": "red", "value": wanted + 1},
        ]
    return [{"color": "green", "value": None}, {"color": "red", "value": panel.bad_from}]


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return [
        source,
        _variable("job", "Cluster", f"label_values({names.ACTIVE_CONTROLLER.name}, job)", is_multiple=False),
        _variable("broker", "Broker", f"label_values({names.LEADERS.name}{{{CLUSTER}}}, instance)"),
        _variable("topic", "Topic", f"label_values({names.LOG_SIZE.name}{{{CLUSTER}}}, topic)"),
    ]


def _variable(name: str, label: str, query: str, *, is_multiple: bool = True) -> dict[str, Any]:
    variable: dict[str, Any] = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATA_SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": is_multiple,
        "includeAll": is_multiple,
    }
    if is_multiple:
        variable["allValue"] = ".*"
        variable["current"] = {"text": "All", "value": "$__all"}
    return variable
