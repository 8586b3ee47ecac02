"""Lines of access logs and of patterns as sources: their columns and types, in Spark and for lint."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm.client.results import Record
from klamm.pipelines import lint_records
from klamm.pipelines.definitions import Format, Source
from klamm.pipelines.errors import DefinitionError, SchemaError
from klamm.pipelines.lint import check
from klamm.pipelines.lint_records import check_records
from klamm.pipelines.project import Project
from klamm.pipelines.schemas import schema_of
from tests.pipelines.decoding.test_plain import decoded, source_of
from tests.pipelines.projects import make_project

LINE = b'10.0.0.1 - - [31/Jan/2026:12:00:05 +0100] "GET /a HTTP/1.1" 200 1 "-" "-"'
PATTERN = r"(?P<n>\S+) (?P<price>\S+) (?P<ok>\S+) (?P<day>\S+) (?P<at>.*)"
SCHEMA = "price DECIMAL(8, 2), n INT, ok BOOLEAN, day DATE, at TIMESTAMP"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


def columns_of(project: Project, source: Source) -> str:
    return ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in schema_of(project, source))


def test_columns_have_natural_types_or_those_of_the_schema(project: Project) -> None:
    assert columns_of(project, source_of("nginx", None)) == (
        "remote_addr string, remote_user string, time_local timestamp, request string, "
        "request_method string, request_uri string, server_protocol string, status int, "
        "body_bytes_sent bigint, http_referer string, http_user_agent string"
    )
    assert columns_of(project, source_of("apache", None)).startswith("remote_host string, remote_logname")
    assert columns_of(project, source_of("regex", None, pattern=PATTERN)).startswith("n string, price string")
    chosen = source_of("nginx", "status SMALLINT, request_uri STRING")
    assert columns_of(project, chosen) == "status smallint, request_uri string"


@pytest.mark.parametrize(
    ("format_", "schema", "problem"),
    [
        ("nginx", "stauts INT", "the column stauts, but there is no column of the log_format.*remote_addr"),
        ("regex", "m INT", r"the column m, but there is no group of the pattern.*n, price"),
        ("regex", "n ARRAY<INT>", r"the column n cannot be ARRAY<INT>"),
    ],
)
def test_schemas_that_lines_cannot_have(project: Project, format_: Format, schema: str, problem: str) -> None:
    options = {"pattern": PATTERN} if format_ == "regex" else {}
    with pytest.raises(SchemaError, match=problem):
        schema_of(project, source_of(format_, schema, **options))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('format="nginx", log_format="combinde"', "the log_format 'combinde' has no variable"),
        ('format="nginx", schema="infer"', "the columns of nginx are not inferred"),
        ('format="nginx", logformat="main"', "logformat is not an option of nginx. Did you mean log_format"),
        ('format="apache", log_format="%Y"', "is not a directive of Apache"),
        ('format="regex"', "a source of regex needs the option pattern"),
        ('format="regex", pattern="(?P<n>"', "is not a valid regular expression"),
    ],
)
def test_lint_names_formats_that_are_wrong(tmp_path: Path, arguments: str, problem: str) -> None:
    text = f"""
@source(topic="lines", {arguments})
def lines(rows):
    return rows

@pipeline(to=to_table("lines"))
def table(lines):
    return lines
"""
    (told,) = [str(finding) for finding in check(make_project(tmp_path, text), records=False)]
    assert "orders.py:3: error: " in told and problem in told
    with pytest.raises(DefinitionError):
        exec(compile(f"from klamm.pipelines import source\nsource(topic='t', {arguments})", "x", "exec"), {})


def test_lint_looks_at_records(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def misfits(source: Source, *values: bytes) -> list[str]:
        records = [Record("lines", 0, number, 0, None, value, ()) for number, value in enumerate(values)]
        monkeypatch.setattr(lint_records, "sample", lambda *arguments: records)
        return [finding.what for finding in check_records(project, source, schema_of(project, source))]

    (told,) = misfits(source_of("nginx", None), LINE, LINE.replace(b"200", b"OK"))
    assert told.startswith("1 of the newest 2 records do not fit the schema of s; lines-0 at offset 1: the ")
    assert "$status is expected, not 'OK 1" in told
    assert misfits(source_of("nginx", "status STRING, time_local DATE"), LINE) == []
    source = source_of("regex", SCHEMA, pattern=PATTERN)
    good = b"1 2.50 true 2026-01-31 2026-01-31T12:00:00Z"
    assert misfits(source, good) == []
    bad = {b"1": b"one", b"2.50": b"cheap", b"true": b"maybe", b"31 ": b"32 ", b"T12": b"T25"}
    for old, new in bad.items():
        (told,) = misfits(source, good.replace(old, new, 1))
        assert "which does not fit" in told
    own = source_of("regex", SCHEMA, pattern=PATTERN, timestampFormat="HH", dateFormat="dd.MM.yyyy")
    assert misfits(own, b"1 2.50 true 31.1.2026 12") == []


@pytest.mark.long
def test_spark_decodes_lines(spark: SparkSession, project: Project) -> None:
    values = [
        LINE,
        None,
        b"nonsense",
        LINE.replace(b" 200 1 ", b" 404 - ") + b"\n",
        LINE.replace(b"31/", b"32/"),
    ]
    rows = decoded(spark, project, source_of("nginx", None), values)
    noon = datetime(2026, 1, 31, 11, 0, 5, tzinfo=UTC)
    assert [(row.status, row.body_bytes_sent) for row in rows[:4]] == [
        (200, 1),
        (None, None),
        (None, None),
        (404, None),
    ]
    assert rows[0].time_local.astimezone(UTC) == noon and rows[0]["_value"] == LINE
    assert [bool(row["_error"]) for row in rows] == [False, False, True, False, True]
    assert rows[2]["_error"] == "the line ends at character 8, where ' - ' is expected"

    rows = decoded(spark, project, source_of("nginx", "time_local DATE, status STRING"), values)
    assert rows[0].time_local == date(2026, 1, 31) and rows[3].status == "404"

    source = source_of("regex", SCHEMA, pattern=PATTERN, timestampFormat="dd/MMM/yyyy:HH:mm:ss Z")
    at = b"31/Jan/2026:12:00:05 +0100"
    rows = decoded(spark, project, source, [b"1 2.50 true 2026-01-31 " + at, b"x 2.50 true 2026-01-31 now"])
    assert (rows[0].n, rows[0].price, rows[0].ok, rows[0].day) == (
        1,
        Decimal("2.50"),
        True,
        date(2026, 1, 31),
    )
    assert rows[0]["at"].astimezone(UTC) == noon
    assert [row["_error"] for row in rows] == [None, "n is 'x', which does not fit INT"]
