"""What all plain faces share, shown on the smallest of them."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from klamm import Admin, ClientClosed, Producer, TimedOut
from klamm.client.plain.face import documented_by
from klamm.testing import Broker

PATIENCE_SECONDS = 20.0


@pytest.fixture(scope="module")
def bootstrap():
    with Broker() as broker:
        yield broker.bootstrap


def clients_threads():
    return {one for one in threading.enumerate() if one.name == "klamm-admin-face"}


def test_one_that_is_dropped_warns_and_its_thread_ends(bootstrap):
    admin = Admin(bootstrap, client_id="face")
    admin.list_topics()
    (thread,) = clients_threads()
    gone = weakref.ref(admin)
    with pytest.warns(ResourceWarning, match="admin face was never closed"):
        del admin
        gc.collect()
    assert gone() is None
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_whoever_closes_second_returns_when_it_is_closed(bootstrap):
    admin = Admin(bootstrap, client_id="face")
    admin.list_topics()
    alive_after_close = []

    def close():
        admin.close()
        alive_after_close.append(bool(clients_threads()))

    closers = [threading.Thread(target=close) for _ in range(4)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(PATIENCE_SECONDS)
    assert alive_after_close == [False] * 4


def test_many_threads_use_one_client_and_one_closes_it(bootstrap):
    admin = Admin(bootstrap, client_id="face")
    ready = threading.Barrier(5)
    ends = []

    def use():
        ready.wait(PATIENCE_SECONDS)
        try:
            while True:
                admin.list_topics()
        except ClientClosed as error:
            ends.append(error)

    users = [threading.Thread(target=use) for _ in range(4)]
    for user in users:
        user.start()
    ready.wait(PATIENCE_SECONDS)
    admin.close()
    for user in users:
        user.join(PATIENCE_SECONDS)
    assert len(ends) == 4


def test_a_face_borrows_the_words_that_it_lacks():
    class Original:
        async def ask(self):
            """Ask."""

        async def tell(self):
            """Tell."""

    @documented_by(Original)
    class Face:
        def ask(self):
            pass

        def tell(self):
            """Tell otherwise."""

    assert (Face.ask.__doc__, Face.tell.__doc__) == ("Ask.", "Tell otherwise.")


def test_clients_and_deliveries_say_what_they_are(bootstrap):
    with Producer(bootstrap, client_id="shop") as producer:
        delivery = producer.send("said", b"1")
        sent = delivery.result()
        assert repr(delivery) == f"<Delivery to said-0: offset {sent.offset}>"
        assert repr(producer) == "<klamm.Producer shop>"
    assert repr(producer) == "<klamm.Producer shop, closed>"


def test_a_flush_that_takes_too_long_says_why():
    with Producer("127.0.0.1:1", max_block_ms=1000) as producer:
        delivery = producer.send("said", b"1")
        assert repr(delivery) == "<Delivery to said: on its way>"
        with pytest.raises(TimedOut, match=r"no connection to 127\.0\.0\.1:1"):
            producer.flush(0.5)
        assert delivery.exception() is not None
        assert repr(delivery) == "<Delivery to said: TimedOut>"
