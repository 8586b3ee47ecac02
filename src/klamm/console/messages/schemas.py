"""Schemas that users gave for Avro and Protobuf values. They are kept in memory, named after their content,
so that a URL can name one, and the same schema is kept once."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any, NamedTuple

from klamm.operating.errors import CannotDo
from klamm.operating.records.views.avro import AvroSchema
from klamm.operating.records.views.protobuf import ProtobufSchema
from klamm.operating.records.views.view import Format, Schema

MOST_SCHEMAS = 200
"""The schema that was used longest ago is forgotten for another."""


class KeptSchema(NamedTuple):
    id: str
    format: Format
    name: str
    """The record or message that it describes."""


class Schemas:
    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[KeptSchema, Schema]] = OrderedDict()

    def keep_avro(self, text: str) -> KeptSchema:
        """Raises CannotDo for a text that is no schema."""
        schema = AvroSchema(text)
        return self._keep(Format.AVRO, schema.name, schema, text.encode(errors="replace"))

    def keep_protobuf(self, descriptors: bytes, message: str) -> KeptSchema:
        """Raises CannotDo for bytes that are no descriptor set, or have no such message."""
        schema = ProtobufSchema(descriptors, message)
        return self._keep(Format.PROTOBUF, message, schema, descriptors + b"\0" + message.encode())

    def get(self, id_: str) -> Schema:
        """Raises CannotDo if it is not kept, or not any more."""
        if id_ not in self._kept:
            raise CannotDo(
                f"this console does not have the schema {id_[:40]}",
                advice="Give it again: schemas are kept while the console runs",
            )
        self._kept.move_to_end(id_)
        return self._kept[id_][1]

    def listed(self) -> list[dict[str, Any]]:
        return [kept._asdict() for kept, _ in reversed(self._kept.values())]

    def _keep(self, format_: Format, name: str, schema: Schema, content: bytes) -> KeptSchema:
        kept = KeptSchema(hashlib.sha256(content).hexdigest()[:16], format_, name)
        self._kept[kept.id] = kept, schema
        self._kept.move_to_end(kept.id)
        while len(self._kept) > MOST_SCHEMAS:
            self._kept.popitem(last=False)
        return kept
