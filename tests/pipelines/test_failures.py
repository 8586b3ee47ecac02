"""Texts of failures, line by line as Spark writes them."""
# ruff: noqa: E501

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from klamm.pipelines.errors import Place
from klamm.pipelines.failures import MOST_WORDS_SHOWN, explain

ROOT = Path("/project")

IN_A_WORKER = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure: \
Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0 in stage 3.0 (TID 3) (127.0.0.1 executor driver): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/project/pipelines/orders.py", line 12, in clean
    return parse(n)
  File "/project/pipelines/_helpers.py", line 3, in parse
    return 1 // (n - 7)
ZeroDivisionError: integer division or modulo by zero

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:645)
\tat org.apache.spark.sql.execution.python.Something.run(Something.scala:1)

Driver stacktrace: SQLSTATE: XXKST
=== Streaming Query ===
Identifier: table [id = 1, runId = 2]
"""

IN_A_SOURCE = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] \
Failed when Python streaming data source perform latestOffset: Traceback (most recent call last):
  File "/venv/pyspark_klamm/stream_reader.py", line 42, in initialOffset
    return to_json(self._driving().initial_offset())
pyspark_klamm.errors.DataLoss: orders-0: offset 5 is gone, 9 is the oldest. Set the option failOnDataLoss to false
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
"""

IN_OUR_WRITER = """[STREAM_FAILED] Query [id = 1] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An error \
occurred in the user provided function in foreach batch sink. Reason: An exception was raised by the Python Proxy. Return \
Message: Traceback (most recent call last):
  File "/venv/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "/venv/klamm/pipelines/sinks/parquet.py", line 88, in _write
    writer.parquet(staged)
pyspark.errors.exceptions.captured.SparkRuntimeException: [USER_RAISED_EXCEPTION] amount is positive: it is -3 SQLSTATE: P0001
\tat org.apache.spark.sql.Something(Something.scala:1)
"""

ANALYSIS = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nix` cannot be resolved. Did you mean [`n`]? SQLSTATE: 42703;
'Project ['nix]
+- ~Project [r#96.n AS n#103L]
"""


def test_an_exception_of_the_users_function_is_told_with_its_line() -> None:
    failure = explain(IN_A_WORKER, ROOT)
    assert failure.summary == "ZeroDivisionError: integer division or modulo by zero"
    assert failure.place == Place(ROOT / "pipelines/_helpers.py", 3)
    assert str(failure).startswith("/project/pipelines/_helpers.py:3: ZeroDivisionError")
    assert failure.detail == IN_A_WORKER


def test_what_the_data_source_says_is_told_without_its_stack() -> None:
    failure = explain(IN_A_SOURCE, ROOT)
    assert failure.summary == (
        "DataLoss: orders-0: offset 5 is gone, 9 is the oldest. Set the option failOnDataLoss to false"
    )
    assert failure.place is None


def test_a_rule_that_fails_the_pipeline_is_told_in_its_own_words() -> None:
    assert explain(IN_OUR_WRITER, ROOT).summary == "amount is positive: it is -3"


def test_an_environment_in_the_projects_folder_has_no_line_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "prefix", "/project/.venv")
    for text in (IN_A_SOURCE, IN_OUR_WRITER):
        assert explain(text.replace("/venv/", "/project/.venv/"), ROOT).place is None
    assert explain(IN_A_WORKER, ROOT).place == Place(ROOT / "pipelines/_helpers.py", 3)


def test_an_analysis_error_is_told_without_the_plan() -> None:
    assert explain(ANALYSIS, ROOT).summary == (
        "A column with name `nix` cannot be resolved. Did you mean [`n`]? [UNRESOLVED_COLUMN.WITH_SUGGESTION]"
    )


def test_anything_else_is_its_first_line() -> None:
    text = "java.lang.OutOfMemoryError: Java heap space\n\tat somewhere(Somewhere.java:1)"
    assert explain(text, ROOT).summary == "Java heap space"
    assert explain("", ROOT).summary == "it failed without a message"


def test_a_very_long_text_is_cut() -> None:
    assert len(explain("x" * 5000, ROOT).summary) == MOST_WORDS_SHOWN
