"""The endpoints of messages: lists, searches and tails as streams, single records, exports, producing.

Streams are server-sent events: lines `data: {…}`. A stream that fails ends with `data: {"error": "…"}`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from klamm.client.errors import ClientError
from klamm.console.addresses import name_of
from klamm.console.api.asking import ApiError, answer
from klamm.console.console import Console
from klamm.console.messages.answering import Messages
from klamm.console.messages.question import Question, question_of
from klamm.console.messages.schemas import Schemas
from klamm.operating.errors import CannotDo
from klamm.operating.records.exporting import ExportFormat
from klamm.operating.records.producing import Encoding, typed_record
from klamm.operating.records.views.protobuf import message_names

MOST_BODY_BYTES = 20_000_000
"""The largest request: a record, or a schema."""

_TYPES = {ExportFormat.JSONL: "application/x-ndjson", ExportFormat.CSV: "text/csv; charset=utf-8"}


def add_messages(router: APIRouter, console: Console) -> None:
    """Add the endpoints. The names of the parameters are in console/messages/question.py."""
    messages, schemas = Messages(console), Schemas()

    def asked(topic: str, request: Request) -> Question:
        given = request.query_params
        schema = schemas.get(given["schema"]) if given.get("schema") else None
        return question_of(name_of(topic), given, schema)

    @router.get("/topics/{topic}/messages")
    async def page(topic: str, request: Request) -> JSONResponse:
        """A page of records: range, partitions, order, filter, at, limit, format, schema, committed."""
        return answer(await messages.page(asked(topic, request)))

    @router.get("/topics/{topic}/messages/search")
    async def search(topic: str, request: Request) -> Response:
        """The same as a stream of events, with how many records were scanned of how many."""
        return _events(messages.search(asked(topic, request)))

    @router.get("/topics/{topic}/messages/tail")
    async def tail(topic: str, request: Request) -> Response:
        """New records as a stream of events; from `at` on, or from now on."""
        return _events(messages.tail(asked(topic, request)))

    @router.get("/topics/{topic}/messages/export.{kind}")
    async def export(topic: str, kind: str, request: Request) -> Response:
        """All records that are asked for as a file: export.jsonl or export.csv."""
        if kind not in _TYPES:
            raise ApiError(404, f"there is no export as {kind}: there are jsonl and csv")
        question, format_ = asked(topic, request), ExportFormat(kind)
        await messages.spans(question)  # so that an error is an answer, and not a broken file
        headers = {"content-disposition": _attachment(f"{question.topic}.{kind}")}
        pieces = messages.export(question, format_)
        return StreamingResponse(pieces, media_type=_TYPES[format_], headers=headers)

    @router.get("/topics/{topic}/messages/snippets")
    async def snippets(topic: str, request: Request) -> JSONResponse:
        """A command and programs that read the same records: cli, python, pyspark."""
        return answer(await messages.snippets(asked(topic, request)))

    @router.get("/topics/{topic}/messages/{partition}/{offset}")
    async def record(topic: str, partition: int, offset: int, request: Request) -> JSONResponse:
        """One record in full: its key and value as a tree, as text and in hexadecimal, and its headers."""
        question = asked(topic, request)
        name, schema = question.topic, question.schema
        return answer(await messages.record(name, partition, offset, question.format, schema))

    @router.get("/topics/{topic}/messages/{partition}/{offset}/{part}")
    async def raw(topic: str, partition: int, offset: int, part: str) -> Response:
        """The key or the value of a record as it is, as a file."""
        if part not in ("key", "value"):
            raise ApiError(404, f"a record has no {part}: it has key and value")
        name = name_of(topic)
        found = await messages.raw_record(name, partition, offset)
        content = (found.key if part == "key" else found.value) or b""
        headers = {"content-disposition": _attachment(f"{name}-{partition}-{offset}-{part}")}
        return Response(content, media_type="application/octet-stream", headers=headers)

    @router.post("/topics/{topic}/messages")
    async def produce(topic: str, request: Request) -> JSONResponse:
        """Send a record: value, value_encoding (text, json, base64, hex, null), key, key_encoding, headers as
        a list of name and value, partition, timestamp."""
        console.changes.check_allowed()  # before anything is said about the record
        record = typed_record(**_typed(await _body(request)))
        sent = await messages.produce(name_of(topic), record)
        return answer({"partition": sent.partition, "offset": sent.offset, "timestamp": sent.timestamp})

    @router.get("/schemas")
    async def listed() -> JSONResponse:
        """The schemas that were given to this console."""
        return answer({"schemas": schemas.listed()})

    @router.post("/schemas")
    async def keep(request: Request) -> JSONResponse:
        """Give a schema: avro with the text of an .avsc file, or protobuf with a descriptor set in base64,
        and message. Without message the answer lists the messages of the set."""
        body = await _body(request)
        if "avro" in body:
            return answer({"schema": schemas.keep_avro(str(body["avro"]))._asdict()})
        try:
            descriptors = base64.b64decode(str(body["protobuf"]), validate=True)
        except (KeyError, binascii.Error, ValueError):
            raise ApiError(400, "expected avro, or protobuf with a descriptor set in base64") from None
        if not body.get("message"):
            return answer({"messages": message_names(descriptors)})
        return answer({"schema": schemas.keep_protobuf(descriptors, str(body["message"]))._asdict()})


def _events(found: AsyncIterator[dict[str, Any]]) -> Response:
    """A stream of events. Answers with this type are not compressed, which would hold them back."""

    async def lines() -> AsyncIterator[bytes]:
        try:
            async for each in found:
                yield b"data: " + json.dumps(each, ensure_ascii=False).encode() + b"\n\n"
        except (CannotDo, ClientError) as error:
            yield b"data: " + json.dumps({"error": str(error)}).encode() + b"\n\n"

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)


async def _body(request: Request) -> dict[str, Any]:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BODY_BYTES:
            raise ApiError(413, f"the request is larger than {MOST_BODY_BYTES:,} bytes")
    try:
        found = json.loads(body)
        if not isinstance(found, dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise ApiError(400, "the request is not a JSON object") from None
    return found


def _typed(body: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `typed_record` in a request. Raises ApiError."""
    try:
        headers = [(str(each["name"]), str(each["value"])) for each in body.get("headers") or []]
        return {
            "value": str(body.get("value", "")),
            "value_encoding": Encoding(body.get("value_encoding", "text")),
            "key": str(body.get("key", "")),
            "key_encoding": Encoding(body.get("key_encoding", "text" if "key" in body else "null")),
            "headers": headers,
            "partition": None if body.get("partition") is None else int(body["partition"]),
            "timestamp": None if body.get("timestamp") is None else int(body["timestamp"]),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ApiError(400, f"the record is not complete, or not valid: {str(error)[:200]}") from None


def _attachment(name: str) -> str:
    return f"attachment; filename*=UTF-8''{quote(name, safe='')}"
