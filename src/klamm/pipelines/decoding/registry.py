"""Avro schemas by their id, from a schema registry that answers GET /schemas/ids/<id> as Confluent's does.

What it knows is asked once per process. An id that it does not know is a fault of the value, which becomes a
dead letter; a registry that does not answer is not, and fails the batch, to be run again.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from http.client import HTTPException
from typing import Any

import fastavro

from klamm.pipelines.decoding.workers import NotDecodable
from klamm.pipelines.errors import DecoderUnavailable
from klamm.pipelines.schemas.avro import for_fastavro

TIMEOUT_S = 10.0
PAUSES_S = (0.5, 1.0, 2.0, 4.0)
"""Between attempts: a registry that is restarted is waited for, one that is gone is told soon."""

KEPT_SCHEMAS = 1000
_NOT_THERE = (40401, 40402, 40403)
"""What a registry answers for a subject, a version or an id that it does not have."""
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


@lru_cache(KEPT_SCHEMAS)
def fetch_schema(registry: str, schema_id: int) -> Any:
    """The schema with this id, as fastavro takes it. Raises NotDecodable or DecoderUnavailable."""
    found = _get(registry, f"/schemas/ids/{schema_id}")
    if found is None:
        raise NotDecodable(f"it was written with schema {schema_id}, which the registry does not know")
    if (kind := found.get("schemaType", "AVRO")) != "AVRO":
        raise NotDecodable(f"it was written with schema {schema_id}, which is not Avro but {kind}")
    return _parsed(registry, found, {})


def _parsed(registry: str, found: Mapping[str, Any], named: dict[str, Any]) -> Any:
    """The schema with those that it refers to, which are kept in `named`."""
    for reference in found.get("references") or []:
        subject = urllib.parse.quote(reference["subject"], safe="")
        path = f"/subjects/{subject}/versions/{reference['version']}"
        other = _get(registry, path)
        if other is None:
            raise NotDecodable(f"its schema refers to {reference['name']}, which is not at {path}")
        _parsed(registry, other, named)
    return fastavro.parse_schema(for_fastavro(json.loads(found["schema"])), named)


def _get(registry: str, path: str) -> dict[str, Any] | None:
    """What is there; None if the registry says that it has nothing there."""
    request = _request(registry, path)
    for pause in (*PAUSES_S, None):
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                found = json.load(answer)
            if isinstance(found, dict) and "schema" in found:
                return found
            last = "it answered something else than a schema"
            break
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND and _is_of_a_registry(error):
                return None
            last = f"{error.code} {error.reason}"
            if error.code < HTTPStatus.INTERNAL_SERVER_ERROR:
                break  # it will say the same the next time
        except (OSError, HTTPException, ValueError) as error:  # not reached, cut off, or no JSON
            last = str(getattr(error, "reason", error))
        if pause is not None:
            time.sleep(pause)
    raise DecoderUnavailable(
        f"the schema registry gave no schema at {request.full_url}: {last}",
        advice="Is it running, is registry= its address, and may we ask it?",
    )


def _is_of_a_registry(error: urllib.error.HTTPError) -> bool:
    """Whether it was a registry that has nothing there, and not another server that knows no such path."""
    try:
        return json.load(error)["error_code"] in _NOT_THERE
    except (OSError, HTTPException, ValueError, TypeError, KeyError):
        return False


def _request(registry: str, path: str) -> urllib.request.Request:
    """A name and a password in the address go into a header, and stay out of what is shown."""
    parts = urllib.parse.urlsplit(registry)
    place = parts.netloc.rpartition("@")[2]
    url = urllib.parse.urlunsplit((parts.scheme, place, parts.path.rstrip("/") + path, "", ""))
    request = urllib.request.Request(url, headers={"Accept": _ACCEPT})
    if parts.username is not None:
        secret = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        request.add_header("Authorization", f"Basic {base64.b64encode(secret.encode()).decode()}")
    return request
