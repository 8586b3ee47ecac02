"""Commands and programs that read what is on the page: for the shell, Python and PySpark. A core.

Names of topics and texts of filters come from anybody, so each is quoted as its language quotes.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from klamm.operating.errors import CannotDo
from klamm.operating.records.filters import (
    ANY,
    Every,
    Field,
    Header,
    Literal,
    Not,
    Path,
    Place,
    Some,
    Term,
    Text,
    Whole,
    parse_filter,
)
from klamm.operating.records.spans import Span


@dataclass(frozen=True)
class Wanted:
    """Which records a snippet reads."""

    bootstrap: str
    topic: str
    spans: Mapping[int, Span]
    """By partition; all have an end."""
    filter_text: str = ""
    range_text: str = ""
    """The range as the user gave it, for all partitions; empty for a single record."""
    is_all_partitions: bool = False


def record_wanted(bootstrap: str, topic: str, partition: int, offset: int) -> Wanted:
    return Wanted(bootstrap, topic, {partition: Span(offset, offset + 1)})


def cli(wanted: Wanted) -> str:
    words = ["klamm", "topic", "consume", wanted.topic, "--bootstrap", wanted.bootstrap]
    if not wanted.is_all_partitions:
        for partition in wanted.spans:
            words += ["--partition", str(partition)]
    range_text = wanted.range_text
    if not range_text and wanted.spans:
        span = next(iter(wanted.spans.values()))
        range_text = f"{span.first}:{span.stop}"
    words += ["--from", range_text or "start", "--exit"]
    if wanted.filter_text:
        words += ["--filter", wanted.filter_text]
    return shlex.join([*words, "--output", "jsonl"])


def python(wanted: Wanted) -> str:
    spans = {each: (span.first, span.stop) for each, span in wanted.spans.items()}
    lines = ["from klamm import Consumer"]
    if wanted.filter_text:
        lines += [
            "from klamm.operating.records.filters import parse_filter",
            "from klamm.operating.records.matching import Matcher",
        ]
    lines += [
        "",
        f"TOPIC = {wanted.topic!r}",
        f"OFFSETS = {spans!r}  # by partition: the first, and the one to stop before",
    ]
    if wanted.filter_text:
        lines.append(f"wanted = Matcher(parse_filter({wanted.filter_text!r}))")
    condition = " and wanted(record)" if wanted.filter_text else ""
    lines += [
        "",
        f'with Consumer({wanted.bootstrap!r}, start="earliest") as consumer:',
        "    for partition, (first, stop) in OFFSETS.items():",
        "        place = (TOPIC, partition)",
        "        consumer.assign([place])",
        "        consumer.seek(place, first)",
        "        while consumer.position(place) < stop:",
        "            for record in consumer.poll(timeout=1.0):",
        f"                if record.offset < stop{condition}:",
        "                    print(record.partition, record.offset, record.key, record.value)",
    ]
    return "\n".join(lines) + "\n"


def pyspark(wanted: Wanted) -> str:
    """Raises CannotDo for a filter that SQL has no words for."""
    first = {str(each): span.first for each, span in wanted.spans.items()}
    stop = {str(each): span.stop for each, span in wanted.spans.items()}
    partitions = sorted(wanted.spans)
    options = {
        "kafka.bootstrap.servers": wanted.bootstrap,
        "assign": json.dumps({wanted.topic: partitions}),
        "startingOffsets": json.dumps({wanted.topic: first}),
        "endingOffsets": json.dumps({wanted.topic: stop}),
        "includeHeaders": "true",
    }
    term = parse_filter(wanted.filter_text)
    lines = [
        "from pyspark.sql import functions as F",
        "",
        "from pyspark_klamm import session",
        "",
        "spark = session()",
        "records = (",
        '    spark.read.format("klamm")',
        *[f"    .option({name!r}, {value!r})" for name, value in options.items()],
        "    .load()",
        *([] if term is None else [f"    .where({sql(term)!r})"]),
        ")",
        'text = [F.col(name).cast("string").alias(name) for name in ("key", "value")]',
        'records.select("partition", "offset", "timestamp", *text, "headers").show(truncate=False)',
    ]
    return "\n".join(lines) + "\n"


# ---- filters as SQL


def sql(term: Term) -> str:
    """A condition of Spark SQL over the columns of the data source. Raises CannotDo."""
    match term:
        case Text(text):
            wanted = _quoted(text.lower())
            parts = [f"contains(lower(CAST({each} AS STRING)), {wanted})" for each in ("key", "value")]
            header = f"contains(lower(concat(h.key, ' ', coalesce(CAST(h.value AS STRING), ''))), {wanted})"
            return (
                "(" + " OR ".join([*(f"coalesce({each}, false)" for each in parts), _headers(header)]) + ")"
            )
        case Whole(part, operator, literal):
            if literal.value is None and not literal.is_quoted:
                return f"{part} IS {'NOT ' if operator == '!=' else ''}NULL"
            return _compared(f"CAST({part} AS STRING)", operator, literal._replace(is_quoted=True))
        case Header(name, operator, wanted_value):
            condition = f"h.key = {_quoted(name)}"
            if wanted_value is not None:
                condition += f" AND {_compared('CAST(h.value AS STRING)', operator, wanted_value)}"
            return _headers(condition)
        case Place(part, operator, number):
            return f"{part} {_SQL.get(operator, operator)} {number}"
        case Field(path, operator, literal):
            document = f"CAST({'key' if path.of_key else 'value'} AS STRING)"
            found = f"get_json_object({document}, {_quoted(_path(path))})"
            return _compared(found, operator, literal)
        case Not(inner):
            return f"NOT coalesce({sql(inner)}, false)"
        case Every(terms):
            return "(" + " AND ".join(sql(each) for each in terms) + ")"
        case Some(terms):
            return "(" + " OR ".join(f"coalesce({sql(each)}, false)" for each in terms) + ")"


_SQL = {"!=": "<>"}


def _compared(found: str, operator: str, literal: Literal) -> str:
    if operator == "~":
        return f"contains(lower({found}), {_quoted(literal.text.lower())})"
    word = _SQL.get(operator, operator)
    if literal.is_quoted or not isinstance(literal.value, int | float) or isinstance(literal.value, bool):
        return f"{found} {word} {_quoted(literal.text)}"
    return f"TRY_CAST({found} AS DOUBLE) {word} {literal.value}"


def _headers(condition: str) -> str:
    return f"coalesce(exists(headers, h -> {condition}), false)"


def _path(path: Path) -> str:
    steps = []
    for each in path.steps:
        if each == ANY:
            raise CannotDo(f"{path} looks at any element of a list, which this condition of SQL cannot")
        if isinstance(each, str) and ("'" in each or "]" in each):
            raise CannotDo(f"the name {each!r} cannot be in a path of SQL")
        steps.append(f"[{each}]" if isinstance(each, int) else f"['{each}']")
    return "$" + "".join(steps)


def _quoted(text: str) -> str:
    """A text as Spark SQL quotes it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"
