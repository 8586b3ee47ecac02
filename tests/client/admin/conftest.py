"""The fixtures of the behaviour suite: both faces, against Klamm and against Apache Kafka."""

from __future__ import annotations

from tests.client.behaviour.conftest import bootstrap as bootstrap
from tests.client.behaviour.conftest import broker as broker
from tests.client.behaviour.conftest import face as face
from tests.client.behaviour.conftest import new_topic as new_topic
from tests.client.behaviour.conftest import session_face as session_face
