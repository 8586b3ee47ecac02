"""One member of a classic group."""

from __future__ import annotations

from dataclasses import dataclass

from klamm.groups.events import Join, JoinedMember, MemberSnapshot, Subscription, Token


@dataclass(slots=True, eq=False)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Subscription, ...]
    assignment: bytes = b""
    join_token: Token | None = None
    sync_token: Token | None = None
    is_new: bool = False
    """True during its first join: the member does not know its id yet, so it cannot send heartbeats."""
    session_deadline_ms: int = 0

    @classmethod
    def joining(cls, member_id: str, request: Join, token: Token) -> Member:
        return cls(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            join_token=token,
            is_new=True,
        )

    @classmethod
    def restored(cls, snapshot: MemberSnapshot, protocol_name: str) -> Member:
        """Only the chosen protocol is in the log; the member names the others when it joins again."""
        return cls(
            member_id=snapshot.member_id,
            instance_id=snapshot.instance_id,
            client_id=snapshot.client_id,
            client_host=snapshot.client_host,
            session_timeout_ms=snapshot.session_timeout_ms,
            rebalance_timeout_ms=snapshot.rebalance_timeout_ms,
            protocols=(Subscription(protocol_name, snapshot.subscription),),
            assignment=snapshot.assignment,
        )

    @property
    def can_expire(self) -> bool:
        """False while a request of the member is parked: it sends no heartbeats then."""
        return self.is_new or (self.join_token is None and self.sync_token is None)

    @property
    def protocol_names(self) -> set[str]:
        return {protocol.name for protocol in self.protocols}

    def restart_session(self, now_ms: int) -> None:
        self.session_deadline_ms = now_ms + self.session_timeout_ms

    def show_life(self, now_ms: int) -> None:
        """A heartbeat or a commit came; a member in its first join keeps its longer deadline."""
        if not self.is_new:
            self.restart_session(now_ms)

    def metadata_for(self, protocol_name: str | None) -> bytes:
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    def vote(self, candidates: set[str]) -> str:
        """The member's favourite among the protocols that everybody supports."""
        return next(protocol.name for protocol in self.protocols if protocol.name in candidates)

    def as_joined(self, protocol_name: str | None) -> JoinedMember:
        return JoinedMember(self.member_id, self.instance_id, self.metadata_for(protocol_name))

    def snapshot(self, protocol_name: str | None, assignment: bytes) -> MemberSnapshot:
        return MemberSnapshot(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata_for(protocol_name),
            assignment=assignment,
        )
