"""How clients begin and end: context managers, after close, after a fork, forgotten, and their errors."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

import klamm
from klamm.model.errors import ErrorCode
from tests.client.behaviour.conftest import NewTopic
from tests.client.faces import Face

KINDS = ["producer", "consumer", "admin"]


def make(face: Face, kind: str, bootstrap: str) -> Any:
    return getattr(face, kind)(bootstrap)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_does_nothing(face: Face, bootstrap: str, kind: str) -> None:
    with make(face, kind, bootstrap):
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_close_twice(face: Face, bootstrap: str, kind: str) -> None:
    client = make(face, kind, bootstrap)
    client.close()
    client.close()


CALLS: dict[str, list[Callable[[Any], Any]]] = {
    "producer": [
        lambda producer: producer.send("topic", b"value"),
        lambda producer: producer.flush(),
    ],
    "consumer": [
        lambda consumer: consumer.poll(timeout=1),
        lambda consumer: next(iter(consumer)),
        lambda consumer: consumer.subscribe(["topic"]),
        lambda consumer: consumer.assign([("topic", 0)]),
        lambda consumer: consumer.commit({("topic", 0): 1}),
        lambda consumer: consumer.topics(),
        lambda consumer: consumer.position(("topic", 0)),
        lambda consumer: consumer.seek(("topic", 0), 1),
    ],
    "admin": [lambda admin: admin.list_topics(), lambda admin: admin.describe_cluster()],
}


@pytest.mark.parametrize("kind", KINDS)
def test_after_close(face: Face, bootstrap: str, kind: str) -> None:
    client = make(face, kind, bootstrap)
    client.close()
    for call in CALLS[kind]:
        with pytest.raises(klamm.ClientClosed) as refused:
            call(client)
        assert kind in str(refused.value)
        assert not refused.value.retriable


@pytest.mark.parametrize("kind", KINDS)
def test_after_close_of_a_client_that_was_used(
    face: Face, bootstrap: str, new_topic: NewTopic, kind: str
) -> None:
    topic = new_topic()
    client = make(face, kind, bootstrap)
    if kind == "producer":
        client.send(topic, b"value").result()
    elif kind == "consumer":
        client.assign([(topic, 0)])
        client.poll(timeout=0.1)
    else:
        client.list_topics()
    client.close()
    for call in CALLS[kind]:
        with pytest.raises(klamm.ClientClosed):
            call(client)


def test_an_exception_in_the_block_closes_too(face: Face, bootstrap: str) -> None:
    with pytest.raises(ZeroDivisionError), face.consumer(bootstrap) as consumer:
        raise ZeroDivisionError
    with pytest.raises(klamm.ClientClosed):
        consumer.poll(timeout=0)


def run_python(program: str, *arguments: str) -> str:
    """A program of its own, as a fork would copy all threads and loops of the tests."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


FORK_PLAIN = """
    import os, sys, klamm
    bootstrap, topic = sys.argv[1:]
    producer, consumer, admin = klamm.Producer(bootstrap), klamm.Consumer(bootstrap), klamm.Admin(bootstrap)
    producer.send(topic, b"parent").result()
    consumer.assign([(topic, 0)])
    consumer.poll(timeout=0.1)
    admin.list_topics()
    waiting = klamm.Producer(bootstrap, linger_ms=60_000)
    delivery = waiting.send(topic, b"lingers")
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (
            lambda: producer.send(topic, b"child"),
            lambda: producer.flush(),
            lambda: producer.counters(),
            lambda: delivery.result(),
            lambda: delivery.result(timeout=30),
            lambda: consumer.poll(timeout=1),
            lambda: consumer.counters(),
            lambda: admin.list_topics(),
        ):
            try:
                call()
            except klamm.ClientForked:
                refused += 1
        assert isinstance(delivery.exception(), klamm.ClientForked) and delivery.done()
        for client in (producer, consumer, admin, waiting):
            client.close()
        with klamm.Producer(bootstrap) as own:
            own.send(topic, b"child").result()
        os._exit(0 if refused == 8 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child was not refused"
    print(producer.send(topic, b"parent").result().offset)
    for client in (producer, consumer, admin, waiting):
        client.close()
    assert delivery.result().offset == 3
"""

FORK_AIO = """
    import asyncio, os, sys, klamm, klamm.aio
    bootstrap, topic = sys.argv[1:]

    async def main():
        async with klamm.aio.Producer(bootstrap) as producer, klamm.aio.Admin(bootstrap) as admin:
            await producer.send(topic, b"parent")
            await admin.list_topics()
            under_way = producer.send(topic, b"parent")
            child = os.fork()
            if child == 0:
                refused = 0
                try:
                    under_way.result()
                except klamm.ClientForked:
                    refused += 1
                try:
                    producer.send(topic, b"child")
                except klamm.ClientForked:
                    refused += 1
                call = admin.list_topics()
                try:
                    call.send(None)
                except klamm.ClientForked:
                    refused += 1
                os._exit(0 if refused == 3 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child was not refused"
            assert (await under_way).offset == 1
            print((await producer.send(topic, b"parent")).offset)

    asyncio.run(main())
"""


def test_after_a_fork(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    """The child is refused and may make clients of its own; the parent goes on."""
    program = FORK_PLAIN if face.name == "plain" else FORK_AIO
    assert run_python(program, bootstrap, new_topic()).split()[-1] == "2"


FORK_IN_A_BLOCK = """
    import asyncio, os, signal, sys, threading, klamm, klamm.aio
    consumer = getattr(klamm if sys.argv[1] == "plain" else klamm.aio, "Consumer")("127.0.0.1:1")
    is_held, may_go_on = threading.Event(), threading.Event()

    def hold():  # as the loop's thread does for each fetch
        with consumer._engine.positions.lock:
            is_held.set()
            may_go_on.wait()

    threading.Thread(target=hold).start()
    is_held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        if sys.argv[1] == "plain":
            consumer.__exit__(None, None, None)
        else:
            asyncio.run(consumer.__aexit__(None, None, None))
        os._exit(0)
    may_go_on.set()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if sys.argv[1] == "plain":
        consumer.close()
    else:
        asyncio.run(consumer.close())
"""


def test_a_forked_child_leaves_the_block_of_a_consumer(face: Face) -> None:
    assert run_python(FORK_IN_A_BLOCK, face.name).split()[0] == "0", "it hung, and was ended by the alarm"


FORGOTTEN = """
    import asyncio, sys, klamm, klamm.aio
    bootstrap, topic, face = sys.argv[1:]

    def plain():
        producer = klamm.Producer(bootstrap)
        print(producer.send(topic, b"value").result().offset)
        global kept
        kept = klamm.Consumer(bootstrap, group=topic, topics=[topic], start="earliest")
        print(len(kept.poll(timeout=20)))

    async def aio():
        producer = klamm.aio.Producer(bootstrap)
        print((await producer.send(topic, b"value")).offset)
        global kept
        kept = klamm.aio.Consumer(bootstrap, group=topic, topics=[topic], start="earliest")
        print(len(await kept.poll(timeout=20)))

    plain() if face == "plain" else asyncio.run(aio())
"""


def test_a_client_that_nobody_closes(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    """The program ends all the same, and is told."""
    said = run_python(FORGOTTEN, bootstrap, new_topic(), face.name)
    assert said.split()[:2] == ["0", "1"]
    assert "ResourceWarning: producer" in said
    assert "Traceback" not in said, said


LOOPS = """
    import asyncio, sys, klamm, klamm.aio
    bootstrap, topic = sys.argv[1:]
    uses = {
        klamm.aio.Producer: lambda client: client.send(topic, b"value"),
        klamm.aio.Consumer: lambda client: client.poll(timeout=0.1),
        klamm.aio.Admin: lambda client: client.list_topics(),
    }
    for make, use in uses.items():
        client = make(bootstrap) if make is not klamm.aio.Consumer else make(bootstrap, topics=topic)

        async def first():
            await use(client)

        async def close():
            await client.close()

        asyncio.run(first())
        for again in (first, close):
            try:
                asyncio.run(again())
            except klamm.ClientMisused as error:
                print(error)
    try:
        klamm.aio.Producer(bootstrap).send(topic, b"value")
    except klamm.ClientMisused as error:
        print(error)
"""


def test_another_event_loop_is_refused(bootstrap: str, new_topic: NewTopic) -> None:
    """Where nothing would ever come: a client that is kept from one asyncio.run() to the next."""
    said = run_python(LOOPS, bootstrap, new_topic())
    for kind in KINDS:
        refusal = rf"{kind} klamm-{kind}-\S+ is used on another event loop than before\. Make it, use it"
        assert len(re.findall(refusal, said)) == 2
    assert re.search(r"producer klamm-producer-\S+ of klamm.aio is used outside of an event loop", said)


def test_errors_say_what_they_are(face: Face, bootstrap: str) -> None:
    with face.admin(bootstrap) as admin, pytest.raises(klamm.UnknownTopic) as refused:
        admin.delete_topic("no-such-topic")
    error = refused.value
    assert isinstance(error, klamm.BrokerError) and isinstance(error, klamm.ClientError)
    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error.advice and error.advice in str(error)
    assert "no-such-topic" in str(error)


def test_calls_that_do_not_fit(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with (
        face.consumer(bootstrap) as consumer,
        pytest.raises(klamm.ClientMisused, match="without a group"),
    ):
        consumer.subscribe([topic], on_assigned=print)
    with face.consumer(bootstrap, group=topic) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(klamm.ClientMisused, match="cannot assign partitions: it has a subscription"):
            consumer.assign([(topic, 0)])
        consumer.unsubscribe()
        consumer.assign([(topic, 0)])
        with pytest.raises(klamm.ClientMisused):
            consumer.seek((topic, 7), 0)
        for limit in (0, -1, "5"):
            with pytest.raises(klamm.ClientMisused, match="max_records"):
                consumer.poll(timeout=1, max_records=limit)
        with pytest.raises(klamm.ClientMisused, match="dict"):
            consumer.commit([(topic, 0)])
        consumer.unsubscribe()
        assert consumer.poll(timeout=0) == [], "nothing is what was asked for"
    with face.consumer(bootstrap) as consumer:
        for read in (lambda: consumer.poll(timeout=1), lambda: next(iter(consumer))):
            with pytest.raises(klamm.ClientMisused, match=r"cannot poll: .*subscribe\(\) or assign\(\)"):
                read()
    with (
        face.consumer(bootstrap) as consumer,
        pytest.raises(klamm.ClientMisused, match="5 is not a list of topics"),
    ):
        consumer.subscribe(5)
    with pytest.raises(klamm.ConfigError, match=r"partitioner.*murmur2"):
        face.producer(bootstrap, partitioner=5)
    with face.admin(bootstrap) as admin:
        with pytest.raises(klamm.ClientMisused, match="NewTopic"):
            admin.create_topics([topic])
        with pytest.raises(klamm.ClientMisused, match="partitions='3'"):
            admin.create_topic(topic, partitions="3")


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_are_not_known(face: Face, bootstrap: str, kind: str) -> None:
    with pytest.raises(klamm.ConfigError, match=r"client\.id"):
        getattr(face, kind)(bootstrap, clientid="mine")
    with pytest.raises(klamm.ConfigError, match=r"request\.timeout\.ms"):
        getattr(face, kind)(bootstrap, config={"request.timeout": "1"})


def test_counters(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with face.producer(bootstrap) as producer:
        for _ in range(3):
            producer.send(topic, b"value").result()
        assert producer.counters()["records_sent"] == 3
    with face.consumer(bootstrap, start="earliest") as consumer:
        consumer.assign([(topic, 0)])
        received = 0
        while received < 3:
            received += len(consumer.poll(timeout=10))
        assert consumer.counters()["records_received"] == 3
