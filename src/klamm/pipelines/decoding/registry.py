"""Avro schemas by their id, from a schema registry that answers GET /schemas/ids/<id> as Confluent's does.

Answers are cached per process. An unknown id is an error of the value, which goes to the dead-letter topic. A
registry that does not answer fails the batch, which Spark runs again.
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
"""Pauses between attempts: long enough for a restart of the registry, short enough to report soon."""

KEPT_SCHEMAS = 1000
_NOT_THERE = (40401, 40402, 40403)
"""Error codes of a registry for an unknown subject, version or id."""
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


@lru_cache(KEPT_SCHEMAS)
def fetch_schema(registry: str, schema_id: int) -> Any:
    """The schema with this id, for fastavro. Raises NotDecodable or DecoderUnavailable."""
    found = _get(registry, f"/schemas/ids/{schema_id}")
    if found is None:
        raise NotDecodable(f"it was written with schema {schema_id}, which the registry does not have")
    if (kind := found.get("schemaType", "AVRO")) != "AVRO":
        raise NotDecodable(f"it was written with schema {schema_id}, which is not Avro but {kind}")
    return _parsed(registry, found, {})


def _parsed(registry: str, found: Mapping[str, Any], named: dict[str, Any]) -> Any:
    """The schema, with the schemas that it references in `named`."""
    for reference in found.get("references") or []:
        subject = urllib.parse.quote(reference["subject"], safe="")
        path = f"/subjects/{subject}/versions/{reference['version']}"
        other = _get(registry, path)
        if other is None:
            raise NotDecodable(
                f"its schema references {reference['name']}, which the registry does not have at {path}"
            )
        _parsed(registry, other, named)
    return fastavro.parse_schema(for_fastavro(json.loads(found["schema"])), named)


def _get(registry: str, path: str) -> dict[str, Any] | None:
    """The JSON at a path; None if the registry has nothing there."""
    request = _request(registry, path)
    for pause in (*PAUSES_S, None):
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                found = json.load(answer)
            if isinstance(found, dict) and "schema" in found:
                return found
            last = "the answer is not a schema"
            break
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND and _is_of_a_registry(error):
                return None
            last = f"{error.code} {error.reason}"
            if error.code < HTTPStatus.INTERNAL_SERVER_ERROR:
                break  # the next answer would be the same
        except (OSError, HTTPException, ValueError) as error:  # not reached, cut off, or not JSON
            last = str(getattr(error, "reason", error))
        if pause is not None:
            time.sleep(pause)
    raise DecoderUnavailable(
        f"the schema registry has not answered {request.full_url}: {last}",
        advice="Check that it is running, that registry= is its URL, and the login",
    )


def _is_of_a_registry(error: urllib.error.HTTPError) -> bool:
    """True if a registry says that it has nothing there; another server's 404 is not that."""
    try:
        return json.load(error)["error_code"] in _NOT_THERE
    except (OSError, HTTPException, ValueError, TypeError, KeyError):
        return False


def _request(registry: str, path: str) -> urllib.request.Request:
    """Move user and password from the URL into a header, so that no message shows them."""
    parts = urllib.parse.urlsplit(registry)
    place = parts.netloc.rpartition("@")[2]
    url = urllib.parse.urlunsplit((parts.scheme, place, parts.path.rstrip("/") + path, "", ""))
    request = urllib.request.Request(url, headers={"Accept": _ACCEPT})
    if parts.username is not None:
        secret = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        request.add_header("Authorization", f"Basic {base64.b64encode(secret.encode()).decode()}")
    return request
