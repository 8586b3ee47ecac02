"""Group scenarios as text: a command a line, and behind the arrow what is answered because of it.

    a joins              => -                               nothing is answered yet
    3000 ms pass         => a1: gen 1, leads a1
    a syncs a1=x         => a1: assigned x
    the group is Stable

Actors are single words; the n-th member id an actor gets is its name and n. A command may carry options:
`static=NAME`, `as=MEMBER_ID` (send this id; `as=` sends none), `topics=t1+t2`, `protocols=range+sticky`,
`type=connect`, `session=MS`, `rebalance=MS`, `v4` (the member id is required), `v9` (can skip assigning),
`generation=N`, `protocol=NAME` and `MEMBER=ASSIGNMENT` for a sync.
Snapshots are persisted at once, unless the scenario says `the log hangs`; then `the log works` or
`the log fails` decides.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from klamm.groups.events import (
    Answered,
    GroupSettings,
    GroupSnapshot,
    GroupState,
    Join,
    JoinResult,
    Leaver,
    Persist,
    Subscription,
    Sync,
    SyncResult,
    Token,
)
from klamm.groups.group import Group
from klamm.model.errors import ErrorCode


def subscription(*topics: str, user_data: bytes = b"") -> bytes:
    """A consumer protocol subscription, version 0."""
    encoded = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + encoded + struct.pack(">i", len(user_data)) + user_data


@dataclass
class Actor:
    name: str
    member_id: str = ""
    generation: int = -1
    ids_given: int = 0


class Scenario:
    def __init__(self, **settings: int) -> None:
        self.settings = GroupSettings(**settings)
        self.group = Group("g", self.settings)
        self.now_ms = 0
        self.actors: dict[str, Actor] = {}
        self.asking: dict[Token, Actor] = {}
        self.next_token = 0
        self.log_hangs = False
        self.hanging: list[Persist] = []
        self.records: list[GroupSnapshot] = []
        self.answers: list[str] = []

    def play(self, script: str) -> None:
        for line in script.strip().splitlines():
            command, arrow, expected = (part.strip() for part in line.partition("=>"))
            if not command:
                continue
            self.answers = []
            self._run(command.split())
            self._perform_effects()
            got = "; ".join(sorted(self.answers)) or "-"
            wanted = "; ".join(sorted(part.strip() for part in expected.split(";"))) if arrow else "-"
            assert got == wanted, f"after `{command}`: got `{got}`, wanted `{wanted}`"

    def _run(self, words: list[str]) -> None:
        match words:
            case [amount, "ms", "pass"]:
                self._pass_time(int(amount))
            case ["the", "group", "is", state]:
                assert self.group.state is GroupState(state), self.group.state
            case ["the", "generation", "is", generation]:
                assert self.group.generation == int(generation), self.group.generation
            case ["the", "protocol", "is", name]:
                assert self.group.protocol_name == name, self.group.protocol_name
            case ["the", "log", "hangs"]:
                self.log_hangs = True
            case ["the", "log", ("works" | "fails") as outcome]:
                self.log_hangs = False
                for effect in self.hanging:
                    self._finish_persist(effect, outcome == "works")
                self.hanging = []
            case ["the", "broker", "restarts"]:
                self.group = Group.restore(self.records[-1], self.settings, self.now_ms)
            case [name, verb, *options]:
                actor = self.actors.setdefault(name, Actor(name))
                given = {key: value for key, _, value in (option.partition("=") for option in options)}
                getattr(self, f"_{verb}")(actor, given)

    def _pass_time(self, amount_ms: int) -> None:
        end_ms = self.now_ms + amount_ms
        while (deadline_ms := self.group.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(deadline_ms, self.now_ms)
            self.group.on_time(self.now_ms)
            self._perform_effects()
        self.now_ms = end_ms

    def _token(self, actor: Actor) -> Token:
        self.next_token += 1
        token = Token(self.next_token)
        self.asking[token] = actor
        return token

    def _joins(self, actor: Actor, given: dict[str, str]) -> None:
        metadata = subscription(*given.get("topics", "t").split("+"))
        names = given.get("protocols", "range").split("+")
        request = Join(
            member_id=given.get("as", actor.member_id),
            instance_id=given.get("static"),
            client_id=actor.name,
            client_host="/127.0.0.1",
            session_timeout_ms=int(given.get("session", 10_000)),
            rebalance_timeout_ms=int(given.get("rebalance", 60_000)),
            protocol_type=given.get("type", "consumer"),
            protocols=tuple(Subscription(name, metadata) for name in names if name),
            new_member_id=f"{actor.name}{actor.ids_given + 1}",
            requires_known_member_id="v4" in given,
            can_skip_assignment="v9" in given,
        )
        self.group.join(request, self._token(actor), self.now_ms)
        if request.member_id == "":
            actor.ids_given += 1

    def _syncs(self, actor: Actor, given: dict[str, str]) -> None:
        known = ("static", "generation", "protocol", "type", "as")
        assignments = {key: value.encode() for key, value in given.items() if key not in known}
        request = Sync(
            member_id=given.get("as", actor.member_id),
            instance_id=given.get("static"),
            generation=int(given.get("generation", actor.generation)),
            protocol_type=given.get("type"),
            protocol_name=given.get("protocol"),
            assignments=assignments,
        )
        self.group.sync(request, self._token(actor), self.now_ms)

    def _beats(self, actor: Actor, given: dict[str, str]) -> None:
        generation = int(given.get("generation", actor.generation))
        member_id = given.get("as", actor.member_id)
        error = self.group.heartbeat(member_id, given.get("static"), generation, self.now_ms)
        self.answers.append(f"{member_id}: {_name(error)}")

    def _commits(self, actor: Actor, given: dict[str, str]) -> None:
        generation = int(given.get("generation", actor.generation))
        member_id = given.get("as", actor.member_id)
        error = self.group.commit_error(member_id, given.get("static"), generation, self.now_ms)
        self.answers.append(f"{member_id}: {_name(error or ErrorCode.NONE)}")

    def _leaves(self, actor: Actor, given: dict[str, str]) -> None:
        member_id = given.get("as", actor.member_id)
        (error,) = self.group.leave([Leaver(member_id, given.get("static"))], self.now_ms)
        self.answers.append(f"{member_id}: {_name(error)}")

    def _perform_effects(self) -> None:
        while effects := self.group.take_effects():
            for effect in effects:
                if isinstance(effect, Answered):
                    self._note_answer(self.asking.pop(effect.token), effect.result)
                elif self.log_hangs:
                    self.hanging.append(effect)
                else:
                    self._finish_persist(effect, True)

    def _finish_persist(self, effect: Persist, succeeds: bool) -> None:
        if succeeds:
            self.records.append(effect.snapshot)
            self.group.persisted(effect.ticket, self.now_ms)
        else:
            self.group.persist_failed(effect.ticket, ErrorCode.NOT_COORDINATOR, self.now_ms)

    def _note_answer(self, actor: Actor, result: JoinResult | SyncResult) -> None:
        if isinstance(result, SyncResult):
            answer = f"assigned {result.assignment.decode() or 'nothing'}"
            self.answers.append(f"{actor.member_id}: {_name(result.error) if result.error else answer}")
            return
        if result.error:
            if result.error is ErrorCode.MEMBER_ID_REQUIRED:
                actor.member_id = result.member_id
            self.answers.append(f"{result.member_id or actor.name}: {_name(result.error)}")
            return
        actor.member_id, actor.generation = result.member_id, result.generation
        role = f"follows {result.leader_id}"
        if result.leader_id == result.member_id:
            role = "leads " + " ".join(member.member_id for member in result.members)
        skip = ", skips" if result.skip_assignment else ""
        self.answers.append(f"{result.member_id}: gen {result.generation}, {role}{skip}")


def _name(error: ErrorCode) -> str:
    return "ok" if error is ErrorCode.NONE else error.name
