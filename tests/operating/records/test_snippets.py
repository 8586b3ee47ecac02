"""Snippets do what they say: commands and programs are run, PySpark's options are read by its source."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import klamm
from klamm.operating.errors import CannotDo
from klamm.operating.records.filters import parse_filter
from klamm.operating.records.producing import Encoding, typed_record
from klamm.operating.records.snippets import Wanted, cli, pyspark, python, record_wanted, sql
from pyspark_klamm.options import parse_read_options
from tests.cli.commands import KLAMM, clean_environment
from tests.operating.records.reading import make_topic, new_topic, spans


@pytest.fixture
async def topic(klamm_bootstrap: str) -> str:
    name = new_topic("snippets")
    await make_topic(klamm_bootstrap, name, partitions=2)
    with klamm.Producer(klamm_bootstrap) as producer:
        for number in range(10):
            city = "Bern" if number % 3 == 0 else "it's; $(exit 7) `x`"
            value = json.dumps({"n": number, "city": city}).encode()
            producer.send(name, value, b"%d" % number, partition=number % 2)
    return name


def run(words: list[str], folder: Path) -> list[str]:
    done = subprocess.run(
        words, cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done
    return done.stdout.splitlines()


FILTER = """n > 2 city = "it's; $(exit 7) `x`" or 'n' = 0"""


async def wanted(bootstrap: str, topic: str, range_: str, filter_text: str) -> Wanted:
    found = await spans(bootstrap, topic, range_)
    return Wanted(bootstrap, topic, found, filter_text, range_, is_all_partitions=True)


async def test_the_command(klamm_bootstrap: str, topic: str, tmp_path: Path) -> None:
    def offsets(command: str) -> list[tuple[int, int]]:
        words = shlex.split(command)
        assert words[0] == "klamm"
        found = [json.loads(line) for line in run([KLAMM, *words[1:]], tmp_path)]
        return sorted((each["partition"], each["offset"]) for each in found)

    assert offsets(cli(record_wanted(klamm_bootstrap, topic, 1, 3))) == [(1, 3)]
    assert offsets(cli(await wanted(klamm_bootstrap, topic, "1:3", ""))) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert offsets(cli(await wanted(klamm_bootstrap, topic, "start:end", FILTER))) == [
        (0, 0),
        (0, 2),
        (0, 4),
        (1, 2),
        (1, 3),
    ]


async def test_the_program(klamm_bootstrap: str, topic: str, tmp_path: Path) -> None:
    for which, expected in (
        (record_wanted(klamm_bootstrap, topic, 1, 3), [(1, 3)]),
        (await wanted(klamm_bootstrap, topic, "1:2", ""), [(0, 1), (1, 1)]),
        (
            await wanted(klamm_bootstrap, topic, "start:end", FILTER),
            [(0, 0), (0, 2), (0, 4), (1, 2), (1, 3)],
        ),
    ):
        file = tmp_path / "read.py"
        file.write_text(python(which))
        lines = [line.split(" ", 2) for line in run([sys.executable, str(file)], tmp_path)]
        assert [(int(line[0]), int(line[1])) for line in lines] == expected


async def test_the_pyspark_program(klamm_bootstrap: str, topic: str) -> None:
    text = pyspark(await wanted(klamm_bootstrap, topic, "1:3", FILTER))
    tree = ast.parse(text)
    compile(tree, "snippet", "exec")
    options = {
        str(ast.literal_eval(call.args[0])): str(ast.literal_eval(call.args[1]))
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "option"
    }
    read = parse_read_options(options, is_stream=False)
    assert read.client["bootstrap.servers"] == klamm_bootstrap
    assert {each.partition for each in read.subscription.partitions or ()} == {0, 1}
    assert set((read.starting.offsets or {}).values()) == {1}
    assert set((read.ending.offsets or {}).values()) == {3}
    assert read.include_headers
    (where,) = [
        ast.literal_eval(call.args[0])
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "where"
    ]
    assert "get_json_object(CAST(value AS STRING), '$[\\'city\\']') = 'it\\'s; $(exit 7) `x`'" in where


def test_filters_as_sql() -> None:
    def as_sql(text: str) -> str:
        term = parse_filter(text)
        assert term is not None
        return sql(term)

    assert as_sql("partition != 2 offset < 7") == "(partition <> 2 AND offset < 7)"
    assert as_sql("key = 7") == "CAST(key AS STRING) = '7'"
    assert as_sql("key = null") == "key IS NULL"
    assert as_sql("amount > 7.5").startswith("TRY_CAST(get_json_object(")
    assert as_sql("header a = '1'") == (
        "coalesce(exists(headers, h -> h.key = 'a' AND CAST(h.value AS STRING) = '1'), false)"
    )
    with pytest.raises(CannotDo, match="any element of a list"):
        as_sql("items[*].n = 1")


# ---- records that are typed


def test_what_is_typed_becomes_a_record() -> None:
    made = typed_record(value='{"a": 1}', value_encoding=Encoding.JSON, headers=[("h", "ü")], partition=3)
    assert made.value == b'{"a": 1}' and made.key is None and made.headers == (("h", "ü".encode()),)
    assert typed_record(value="AAE=", value_encoding=Encoding.BASE64).value == b"\0\1"
    assert typed_record(value="00 ff", value_encoding=Encoding.HEX, key="k", key_encoding=Encoding.TEXT) == (
        b"\0\xff",
        b"k",
        (),
        None,
        None,
    )
    assert typed_record(value="ignored", value_encoding=Encoding.NULL).value is None


@pytest.mark.parametrize(
    ("text", "encoding", "complaint"),
    [
        ("{", Encoding.JSON, "the value is not JSON: .*, line 1, column 2"),
        ("[" * 100_000, Encoding.JSON, "not JSON that can be read"),
        ("?", Encoding.BASE64, "the value is not base64"),
        ("0g", Encoding.HEX, "the value is not hexadecimal"),
    ],
)
def test_what_is_typed_wrong(text: str, encoding: Encoding, complaint: str) -> None:
    with pytest.raises(CannotDo, match=complaint):
        typed_record(value=text, value_encoding=encoding)
    with pytest.raises(CannotDo, match="a header has no name"):
        typed_record(value="x", headers=[("", "x")])
