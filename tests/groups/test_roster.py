"""The vote for a protocol: what it looks at, and what it remembers."""

from __future__ import annotations

from collections import Counter
from typing import NoReturn

from klamm.groups.events import Subscription
from klamm.groups.member import Member
from klamm.groups.roster import Roster


def member(name: str, *protocols: str) -> Member:
    return Member(
        member_id=name,
        instance_id=None,
        client_id="client",
        client_host="/127.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocols=tuple(Subscription(protocol, b"") for protocol in protocols),
    )


def roster(*members: Member) -> Roster:
    made = Roster()
    for each in members:
        made.add(each)
    return made


def test_the_favourite_of_most_members_is_elected_among_those_that_all_support() -> None:
    assert roster().elect_protocol() is None
    assert roster(member("a", "x"), member("b", "y")).elect_protocol() is None
    voters = [member("a", "mine", "x", "y"), member("b", "y", "x", "own"), member("c", "y", "x")]
    assert roster(*voters).elect_protocol() == "y"


def test_protocols_that_no_member_supports_any_more_are_forgotten() -> None:
    group = roster(member("stays", "x"))
    for number in range(10):
        comes = member("comes", "x", f"{number}")
        group.add(comes)
        group.replace_protocols(comes, tuple(Subscription(name, b"") for name in ("x", f"other {number}")))
        assert group.elect_protocol() == "x"
        group.remove("comes")
    assert group._supporters == {"x": 1} and len(group._supporters) == 1


def test_an_election_does_not_look_at_the_names_of_every_member() -> None:
    """A thousand members with names of their own had half a second of them."""
    group = roster(*(member(f"{number}", "x", f"own {number}") for number in range(100)))

    class CannotBeListed(Counter[str]):
        def items(self) -> NoReturn:
            raise AssertionError("the names of all members are looked at")

        __iter__ = keys = values = items  # type: ignore[assignment]

    group._supporters = CannotBeListed(group._supporters)
    assert group.elect_protocol() == "x"
