"""The formats of sources: the schema and options that each needs or accepts. `decoding/` decodes values.

| format | schema | options |
|---|---|---|
| json | DDL, a .json file, or "infer" | Spark's, see JSON_OPTIONS |
| csv | DDL, a .json file, or "infer" (all columns are text then) | Spark's, see CSV_OPTIONS |
| nginx | none, or DDL or a .json file with some of the columns | `log_format`, `escape` |
| apache | the same | `log_format` |
| regex | the same | `pattern`, `timestampFormat`, `dateFormat` |
| text | none: one column `value` | `encoding` |
| avro | an .avsc file | `framing`: "none", or "confluent" (five bytes before the value); `registry` |
| protobuf | a descriptor set file .desc (`protoc --include_imports -o`) | `message`, `framing` |
| binary | none: one column `value` | |
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import NamedTuple

from klamm.lineformats.format import BadFormat
from klamm.pipelines.definitions import INFER, Format
from klamm.pipelines.line_formats import LINE_FORMATS, line_format

JSON_OPTIONS = (
    "allowBackslashEscapingAnyCharacter",
    "allowComments",
    "allowNonNumericNumbers",
    "allowSingleQuotes",
    "allowUnquotedFieldNames",
    "dateFormat",
    "locale",
    "primitivesAsString",
    "timeZone",
    "timestampFormat",
    "timestampNTZFormat",
)
CSV_OPTIONS = (
    "comment",
    "dateFormat",
    "emptyValue",
    "escape",
    "ignoreLeadingWhiteSpace",
    "ignoreTrailingWhiteSpace",
    "locale",
    "nanValue",
    "negativeInf",
    "nullValue",
    "positiveInf",
    "quote",
    "sep",
    "timeZone",
    "timestampFormat",
    "timestampNTZFormat",
)

FRAMINGS = ("none", "confluent")


class FormatRow(NamedTuple):
    """What a format accepts. `schema_suffixes` are the suffixes of its schema files; a format with some takes
    a schema, and needs one if `needs_schema`."""

    options: tuple[str, ...]
    needs_schema: bool
    schema_suffixes: tuple[str, ...] = ()
    takes_ddl: bool = False
    needs_options: tuple[str, ...] = ()


FORMAT_ROWS: Mapping[Format, FormatRow] = {
    "json": FormatRow(JSON_OPTIONS, True, (".json",), takes_ddl=True),
    "csv": FormatRow(CSV_OPTIONS, True, (".json",), takes_ddl=True),
    "nginx": FormatRow(("log_format", "escape"), False, (".json",), takes_ddl=True),
    "apache": FormatRow(("log_format",), False, (".json",), takes_ddl=True),
    "regex": FormatRow(
        ("pattern", "timestampFormat", "dateFormat"),
        False,
        (".json",),
        takes_ddl=True,
        needs_options=("pattern",),
    ),
    "text": FormatRow(("encoding",), False),
    "avro": FormatRow(("framing", "registry"), True, (".avsc",)),
    "protobuf": FormatRow(("framing", "message"), True, (".desc",), needs_options=("message",)),
    "binary": FormatRow((), False),
}


def complaints(format_: Format, schema: str | None, options: Mapping[str, str]) -> list[tuple[str, str]]:
    """What is wrong with the arguments of a source: pairs of a sentence and an advice."""
    row = FORMAT_ROWS[format_]
    found: list[tuple[str, str]] = []
    if row.needs_schema and not schema:
        files = " or ".join(row.schema_suffixes)
        advice = (
            f'Give columns ("id STRING, amount DOUBLE"), a {files} file in the schemas folder, or "infer"'
        )
        found.append(
            (
                f"a source of {format_} needs a schema",
                advice if row.takes_ddl else f"Name a {files} file in the project's schemas folder",
            )
        )
    elif schema and not row.schema_suffixes:
        found.append(
            (f"a source of {format_} takes no schema", "Remove it; the source has one column, value")
        )
    elif schema == INFER and not row.needs_schema:
        found.append((f"the columns of {format_} are not inferred: its format names them", "Remove schema="))
    elif schema and not row.takes_ddl and not schema.endswith(row.schema_suffixes):
        found.append(
            (
                f"the schema {schema!r} is not a {' or '.join(row.schema_suffixes)} file",
                "Name such a file in the project's schemas folder"
                + ("; only json and csv can be inferred" if schema == INFER else ""),
            )
        )
    for name in options:
        if name not in row.options:
            nearest = difflib.get_close_matches(name, row.options, n=1)
            known = (
                f"Did you mean {nearest[0]}?" if nearest else f"It takes {', '.join(row.options) or 'none'}"
            )
            found.append((f"{name} is not an option of {format_}", known))
    for name in row.needs_options:
        if name not in options:
            found.append((f"a source of {format_} needs the option {name}", f'Add {name}="…"'))
    if options.get("framing", "none") not in FRAMINGS:
        found.append((f"framing={options['framing']!r} is not valid", f"Use {' or '.join(FRAMINGS)}"))
    if "registry" in options and options.get("framing") != "confluent":
        found.append(("a registry needs values that begin with a schema id", 'Add framing="confluent"'))
    if not options.get("registry", "http://").startswith(("http://", "https://")):
        found.append(
            (f"the registry {options['registry']!r} is not a valid URL", "Begin it with http:// or https://")
        )
    if format_ in LINE_FORMATS and not found:
        try:
            line_format(format_, options)
        except BadFormat as error:
            found.append((error.message, error.advice))
    return found
