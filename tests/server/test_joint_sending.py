"""Answers to many connections leave together, and never wait for something long."""

from __future__ import annotations

import asyncio

import pytest

from klamm.server.joint_sending import MOST_AT_ONCE, JointSending


class Client:
    def __init__(self, sent: list[str], name: str) -> None:
        self.last_active = 0.0
        self._sent = sent
        self._name = name

    def send_answers(self) -> None:
        self._sent.append(self._name)

    def send_answered(self) -> None:
        if self._name == "broken":
            raise ValueError("a bug")
        self._sent.append(self._name)


class Crowd:
    def __init__(self) -> None:
        self.joint_sending = JointSending()
        self.sent: list[str] = []
        self.clients: list[Client] = []

    def read(self, client: Client, now_s: float) -> bool:
        """Whether the answer to what was read waits for others."""
        client.last_active = now_s
        self.joint_sending.note_reader(client)
        return self.joint_sending.takes(client)

    def client(self, name: str) -> Client:
        self.clients.append(Client(self.sent, name))
        return self.clients[-1]


async def test_the_first_of_an_iteration_is_answered_at_once_and_the_others_at_its_end() -> None:
    crowd = Crowd()
    assert not crowd.read(crowd.client("a"), 1.0)
    assert crowd.read(crowd.client("b"), 1.0)
    assert crowd.read(crowd.client("c"), 1.0)
    assert crowd.sent == []
    await asyncio.sleep(0)
    assert crowd.sent == ["b", "c"]


async def test_a_connection_that_is_alone_never_waits() -> None:
    crowd = Crowd()
    client = crowd.client("a")
    assert [crowd.read(client, 1.0) for _ in range(3)] == [False, False, False]
    other = crowd.client("b")
    assert not crowd.read(other, 2.0)


async def test_only_so_many_wait() -> None:
    crowd = Crowd()
    for number in range(MOST_AT_ONCE + 1):
        crowd.read(crowd.client(str(number)), 1.0)
    assert len(crowd.sent) == MOST_AT_ONCE
    crowd.read(crowd.client("one more"), 1.0)
    await asyncio.sleep(0)
    assert len(crowd.sent) == MOST_AT_ONCE + 1


async def test_what_waits_is_sent_before_something_long_and_not_again() -> None:
    crowd = Crowd()
    for name in "abc":
        crowd.read(crowd.client(name), 1.0)
    crowd.joint_sending.send()
    assert crowd.sent == ["b", "c"]
    await asyncio.sleep(0)
    assert crowd.sent == ["b", "c"]


async def test_completed_replies_leave_in_the_next_iteration() -> None:
    crowd = Crowd()
    for name in "ab":
        crowd.joint_sending.send_soon(crowd.client(name))
    assert crowd.sent == []
    await asyncio.sleep(0)
    assert crowd.sent == ["a", "b"]
    crowd.joint_sending.send_soon(crowd.clients[0])
    await asyncio.sleep(0)
    assert crowd.sent == ["a", "b", "a"]


async def test_a_connection_that_fails_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    crowd = Crowd()
    for name in ("a", "broken", "b"):
        crowd.joint_sending.send_soon(crowd.client(name))
    await asyncio.sleep(0)
    assert crowd.sent == ["a", "b"]
    assert "cannot be sent" in caplog.text
