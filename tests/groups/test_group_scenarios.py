"""What a classic group does, scenario by scenario."""

from __future__ import annotations

import pytest

from tests.groups.scenario import Scenario

TWO_STABLE = """
    a joins              => -
    b joins              => -
    6000 ms pass         => a1: gen 1, leads a1 b1; b1: gen 1, follows a1
    b syncs              => -
    a syncs a1=x b1=y    => a1: assigned x; b1: assigned y
    the group is Stable
"""

TWO_STATIC_STABLE = """
    a joins static=A     => -
    b joins static=B     => -
    6000 ms pass         => a1: gen 1, leads a1 b1; b1: gen 1, follows a1
    b syncs static=B     => -
    a syncs a1=x b1=y    => a1: assigned x; b1: assigned y
    the group is Stable
"""

SCENARIOS = {
    "the first member waits for the initial delay and is alone": """
        a joins              => -
        2999 ms pass         => -
        1 ms pass            => a1: gen 1, leads a1
        the group is CompletingRebalance
        a syncs a1=x         => a1: assigned x
        the group is Stable
    """,
    "each newcomer extends the initial delay up to the rebalance timeout": """
        a joins rebalance=7000  => -
        2000 ms pass
        b joins rebalance=7000  => -
        2000 ms pass
        c joins rebalance=7000  => -
        2999 ms pass            => -
        1 ms pass               => a1: gen 1, leads a1 b1 c1; b1: gen 1, follows a1; c1: gen 1, follows a1
    """,
    "a new member from version 4 on is told its id first": """
        a joins v4           => a1: MEMBER_ID_REQUIRED
        the group is Empty
        a joins v4           => -
        3000 ms pass         => a1: gen 1, leads a1
    """,
    "an id that was given out but not used is forgotten": """
        a joins v4           => a1: MEMBER_ID_REQUIRED
        10000 ms pass
        a joins v4           => a1: UNKNOWN_MEMBER_ID
    """,
    "a rebalance waits for those who were just told their id": TWO_STABLE
    + """
        c joins v4           => c1: MEMBER_ID_REQUIRED
        the group is Stable
        a joins              => -
        b joins              => -
        the group is PreparingRebalance
        c joins              => a1: gen 2, leads a1 b1 c1; b1: gen 2, follows a1; c1: gen 2, follows a1
    """,
    "a rebalance stops waiting for an id that lapses": TWO_STABLE
    + """
        c joins v4           => c1: MEMBER_ID_REQUIRED
        a joins              => -
        b joins              => -
        10000 ms pass        => a1: gen 2, leads a1 b1; b1: gen 2, follows a1
    """,
    "a third member makes the others join again": TWO_STABLE
    + """
        c joins              => -
        the group is PreparingRebalance
        a beats              => a1: REBALANCE_IN_PROGRESS
        a joins              => -
        b joins              => a1: gen 2, leads a1 b1 c1; b1: gen 2, follows a1; c1: gen 2, follows a1
    """,
    "who does not join again before the rebalance timeout is out": """
        a joins session=600000     => -
        b joins session=600000     => -
        6000 ms pass               => a1: gen 1, leads a1 b1; b1: gen 1, follows a1
        b syncs                    => -
        a syncs a1=x b1=y          => a1: assigned x; b1: assigned y
        c joins                    => -
        a joins session=600000     => -
        59999 ms pass              => -
        1 ms pass                  => a1: gen 2, leads a1 c1; c1: gen 2, follows a1
        b beats                    => b1: UNKNOWN_MEMBER_ID
    """,
    "a leader that stays away loses the leadership": TWO_STABLE
    + """
        c joins              => -
        b joins              => -
        10000 ms pass        => b1: gen 2, leads b1 c1; c1: gen 2, follows b1
    """,
    "a silent member expires and the others are told by their heartbeat": TWO_STABLE
    + """
        6000 ms pass
        a beats              => a1: ok
        4000 ms pass
        the group is PreparingRebalance
        a beats              => a1: REBALANCE_IN_PROGRESS
        a joins              => a1: gen 2, leads a1
    """,
    "a member parked in a join or a sync does not expire": """
        a joins session=6000       => -
        b joins session=90000      => -
        6000 ms pass               => a1: gen 1, leads a1 b1; b1: gen 1, follows a1
        b syncs                    => -
        a syncs                    => a1: assigned nothing; b1: assigned nothing
        a joins session=6000       => -
        30000 ms pass              => -
        b joins session=90000      => a1: gen 2, leads a1 b1; b1: gen 2, follows a1
    """,
    "a first join that is parked for five minutes is taken for a ghost": """
        a joins rebalance=900000 session=800000   => -
        3000 ms pass                              => a1: gen 1, leads a1
        a syncs a1=x                              => a1: assigned x
        b joins                                   => -
        299999 ms pass                            => -
        1 ms pass                                 => b1: UNKNOWN_MEMBER_ID
        the group is PreparingRebalance
        a joins                                   => a1: gen 2, leads a1
    """,
    "everybody leaves: the group is empty, and its generation went up": TWO_STABLE
    + """
        a leaves             => a1: ok
        the group is PreparingRebalance
        b leaves             => b1: ok
        the group is Empty
        the generation is 2
        b beats              => b1: UNKNOWN_MEMBER_ID
        b leaves             => b1: UNKNOWN_MEMBER_ID
    """,
    "a leave while others wait completes the join": TWO_STABLE
    + """
        c joins              => -
        b joins              => -
        a leaves             => a1: ok; b1: gen 2, leads b1 c1; c1: gen 2, follows b1
    """,
    "a member that leaves while its join is parked gets its answer": """
        a joins v4           => a1: MEMBER_ID_REQUIRED
        a joins              => -
        a leaves             => a1: UNKNOWN_MEMBER_ID; a1: ok
        the group is Empty
    """,
    "an id that was given out can leave without disturbing anybody": TWO_STABLE
    + """
        c joins v4           => c1: MEMBER_ID_REQUIRED
        c leaves             => c1: ok
        the group is Stable
    """,
    "a follower that joins again unchanged gets the present generation": TWO_STABLE
    + """
        b joins              => b1: gen 1, follows a1
        b syncs              => b1: assigned y
        the group is Stable
    """,
    "a follower with a changed subscription rebalances": TWO_STABLE
    + """
        b joins topics=t+u   => -
        the group is PreparingRebalance
        a joins              => a1: gen 2, leads a1 b1; b1: gen 2, follows a1
    """,
    "a leader that joins again always rebalances": TWO_STABLE
    + """
        a joins              => -
        the group is PreparingRebalance
    """,
    "a lost join answer is repeated while the group waits for its leader": """
        a joins              => -
        b joins              => -
        6000 ms pass         => a1: gen 1, leads a1 b1; b1: gen 1, follows a1
        a joins              => a1: gen 1, leads a1 b1
        b joins              => b1: gen 1, follows a1
        the group is CompletingRebalance
        b joins topics=u     => -
        the group is PreparingRebalance
    """,
    "a join in CompletingRebalance sends those who wait in sync back": """
        a joins              => -
        b joins              => -
        6000 ms pass         => a1: gen 1, leads a1 b1; b1: gen 1, follows a1
        b syncs              => -
        c joins              => b1: REBALANCE_IN_PROGRESS
        a syncs a1=x         => a1: REBALANCE_IN_PROGRESS
    """,
    "a member that asks twice gets an answer to both": TWO_STABLE
    + """
        c joins              => -
        b joins              => -
        b joins              => b1: REBALANCE_IN_PROGRESS
        a joins              => a1: gen 2, leads a1 b1 c1; b1: gen 2, follows a1; c1: gen 2, follows a1
        b syncs              => -
        b syncs              => b1: REBALANCE_IN_PROGRESS
    """,
    "members that never sync are removed after the rebalance timeout": """
        a joins rebalance=20000 session=90000   => -
        b joins rebalance=20000 session=90000   => -
        6000 ms pass                            => a1: gen 1, leads a1 b1; b1: gen 1, follows a1
        a syncs a1=x b1=y                       => a1: assigned x
        the group is Stable
        19999 ms pass
        the group is Stable
        1 ms pass
        the group is PreparingRebalance
        b beats                                 => b1: UNKNOWN_MEMBER_ID
        a joins rebalance=20000                 => a1: gen 2, leads a1
    """,
    "a leader that never syncs is removed, and its followers join again": """
        a joins rebalance=20000 session=90000   => -
        b joins rebalance=20000 session=90000   => -
        6000 ms pass                            => a1: gen 1, leads a1 b1; b1: gen 1, follows a1
        b syncs                                 => -
        20000 ms pass                           => b1: REBALANCE_IN_PROGRESS
        b joins                                 => b1: gen 2, leads b1
    """,
    "wrong generations and strangers are refused": TWO_STABLE
    + """
        a beats generation=7     => a1: ILLEGAL_GENERATION
        a beats as=z             => z: UNKNOWN_MEMBER_ID
        a syncs generation=0     => a1: ILLEGAL_GENERATION
        a joins as=z             => z: UNKNOWN_MEMBER_ID
        a commits generation=0   => a1: ILLEGAL_GENERATION
        a commits as=z           => z: UNKNOWN_MEMBER_ID
        a commits                => a1: ok
    """,
    "a sync must name the protocol that was chosen": TWO_STABLE
    + """
        a syncs protocol=sticky              => a1: INCONSISTENT_GROUP_PROTOCOL
        a syncs type=connect protocol=range  => a1: INCONSISTENT_GROUP_PROTOCOL
        a syncs type=consumer protocol=range => a1: assigned x
    """,
    "heartbeats in CompletingRebalance are fine and keep the session": """
        a joins              => -
        3000 ms pass         => a1: gen 1, leads a1
        9000 ms pass
        a beats              => a1: ok
        9000 ms pass
        a syncs a1=x         => a1: assigned x
    """,
    "commits: the old generation while preparing, none while completing": TWO_STABLE
    + """
        c joins                     => -
        a commits                   => a1: ok
        b joins                     => -
        a joins                     => a1: gen 2, leads a1 b1 c1; b1: gen 2, follows a1; c1: gen 2, follows a1
        a commits                   => a1: REBALANCE_IN_PROGRESS
        x commits generation=-1     => : UNKNOWN_MEMBER_ID
    """,
    "anybody may commit to an empty group, without a generation": """
        x commits generation=-1         => : ok
        x commits generation=3 as=x     => x: UNKNOWN_MEMBER_ID
    """,
    "the protocol with the most first votes among those all support wins": """
        a joins protocols=range+sticky        => -
        b joins protocols=sticky+range+robin => -
        c joins protocols=robin+sticky => -
        6000 ms pass => a1: gen 1, leads a1 b1 c1; b1: gen 1, follows a1; c1: gen 1, follows a1
        the protocol is sticky
    """,
    "protocols that do not overlap, none at all, and another type are refused": """
        x joins protocols=               => x: INCONSISTENT_GROUP_PROTOCOL
        a joins                          => -
        b joins protocols=sticky         => b: INCONSISTENT_GROUP_PROTOCOL
        b joins type=connect             => b: INCONSISTENT_GROUP_PROTOCOL
    """,
    "a group of another protocol type works the same": """
        a joins type=connect protocols=compatible   => -
        3000 ms pass                                => a1: gen 1, leads a1
        a syncs type=connect protocol=compatible a1=x => a1: assigned x
    """,
    "back-to-back rebalances, as cooperative assignors do": TWO_STABLE
    + """
        a joins              => -
        b joins              => a1: gen 2, leads a1 b1; b1: gen 2, follows a1
        a syncs a1=p b1=q    => a1: assigned p
        b syncs              => b1: assigned q
        b joins topics=t+u   => -
        a joins              => a1: gen 3, leads a1 b1; b1: gen 3, follows a1
    """,
    "a static follower comes back: a new id, no rebalance, the old id fenced": TWO_STATIC_STABLE
    + """
        b joins static=B as=         => b2: gen 1, follows a1
        the group is Stable
        b syncs static=B             => b2: assigned y
        b beats static=B as=b1       => b1: FENCED_INSTANCE_ID
        b commits static=B as=b1     => b1: FENCED_INSTANCE_ID
        b syncs static=B as=b1       => b2: FENCED_INSTANCE_ID
        b joins static=B as=b1       => b1: FENCED_INSTANCE_ID
        b leaves static=B as=b1      => b1: FENCED_INSTANCE_ID
        b beats static=B             => b2: ok
    """,
    "a static leader comes back with an old client: it is told its old member id as leader": TWO_STATIC_STABLE
    + """
        a joins static=A as=         => a2: gen 1, follows a1
        a syncs static=A             => a2: assigned x
        the group is Stable
    """,
    "a static leader comes back with a new client: it leads and skips": TWO_STATIC_STABLE
    + """
        a joins static=A as= v9      => a2: gen 1, leads b1 a2, skips
        a syncs static=A             => a2: assigned x
        the group is Stable
    """,
    "a static member that comes back with other topics rebalances": TWO_STATIC_STABLE
    + """
        b joins static=B as= topics=t+u  => -
        the group is PreparingRebalance
        a joins static=A                 => a1: gen 2, leads a1 b2; b2: gen 2, follows a1
    """,
    "a static member that comes back with another protocol rebalances": """
        a joins static=A protocols=range+sticky     => -
        3000 ms pass                                => a1: gen 1, leads a1
        a syncs a1=x                                => a1: assigned x
        a joins static=A as= protocols=sticky+range => a2: gen 2, leads a2
        the protocol is sticky
    """,
    "a static member that comes back while others wait for the leader rebalances": """
        a joins static=A     => -
        b joins static=B     => -
        6000 ms pass         => a1: gen 1, leads a1 b1; b1: gen 1, follows a1
        b syncs static=B     => -
        b joins static=B as= => b1: FENCED_INSTANCE_ID
        the group is PreparingRebalance
        a joins static=A     => a1: gen 2, leads a1 b2; b2: gen 2, follows a1
    """,
    "a second holder of a static name fences the first, which is parked": """
        a joins static=A     => -
        z joins static=A     => a1: FENCED_INSTANCE_ID
        3000 ms pass         => z1: gen 1, leads z1
    """,
    "a static member keeps its place through a rebalance it misses, until its session ends": """
        a joins static=A session=80000      => -
        b joins static=B session=80000      => -
        6000 ms pass                        => a1: gen 1, leads a1 b1; b1: gen 1, follows a1
        b syncs static=B                    => -
        a syncs a1=x b1=y                   => a1: assigned x; b1: assigned y
        c joins session=80000               => -
        a joins static=A session=80000      => -
        60000 ms pass                       => a1: gen 2, leads a1 b1 c1; c1: gen 2, follows a1
    """,
    "a join phase that only absent static members could fill waits for one of them": """
        a joins static=A session=900000     => -
        3000 ms pass                        => a1: gen 1, leads a1
        a syncs a1=x                        => a1: assigned x
        c joins                             => -
        c leaves as=c1                      => c1: UNKNOWN_MEMBER_ID; c1: ok
        120000 ms pass
        the group is PreparingRebalance
        the generation is 1
        a joins static=A                    => a1: gen 2, leads a1
    """,
    "an administrator removes a static member by its name": TWO_STATIC_STABLE
    + """
        x leaves static=B    => : ok
        x leaves static=Z    => : UNKNOWN_MEMBER_ID
        x leaves             => : UNKNOWN_MEMBER_ID
        the group is PreparingRebalance
    """,
    "an unknown static name is an unknown member": TWO_STATIC_STABLE
    + """
        b beats static=Z     => b1: UNKNOWN_MEMBER_ID
    """,
    "a restart keeps members, assignments and generation, and starts sessions anew": TWO_STABLE
    + """
        9000 ms pass
        the broker restarts
        9000 ms pass
        the group is Stable
        a beats              => a1: ok
        b syncs              => b1: assigned y
        b joins              => b1: gen 1, follows a1
        10000 ms pass
        the group is Empty
    """,
    "an assignment is handed out only once it is in the log": """
        a joins              => -
        3000 ms pass         => a1: gen 1, leads a1
        the log hangs
        a syncs a1=x         => -
        the group is CompletingRebalance
        a beats              => a1: ok
        a syncs a1=other     => a1: REBALANCE_IN_PROGRESS
        the log works        => a1: assigned x
        the group is Stable
    """,
    "an assignment that cannot be written makes everybody join again": """
        a joins              => -
        b joins              => -
        6000 ms pass         => a1: gen 1, leads a1 b1; b1: gen 1, follows a1
        b syncs              => -
        the log hangs
        a syncs a1=x         => -
        the log fails        => a1: NOT_COORDINATOR; b1: NOT_COORDINATOR
        the group is PreparingRebalance
        a joins              => -
        b joins              => a1: gen 2, leads a1 b1; b1: gen 2, follows a1
    """,
    "an assignment that is overtaken by a rebalance is not handed out": """
        a joins              => -
        3000 ms pass         => a1: gen 1, leads a1
        the log hangs
        a syncs a1=x         => -
        b joins              => a1: REBALANCE_IN_PROGRESS
        a joins              => a1: gen 2, leads a1 b1; b1: gen 2, follows a1
        b syncs              => -
        the log works        => -
        the group is CompletingRebalance
        a syncs a1=p b1=q    => a1: assigned p; b1: assigned q
    """,
    "a static return waits for the log; a rebalance meanwhile takes it along": TWO_STATIC_STABLE
    + """
        the log hangs
        b joins static=B as= => -
        c joins              => -
        a joins static=A     => a1: gen 2, leads a1 b2 c1; b2: gen 2, follows a1; c1: gen 2, follows a1
        the log works        => -
        the group is CompletingRebalance
    """,
    "a static return that cannot be written is refused and can be tried again": TWO_STATIC_STABLE
    + """
        the log hangs
        b joins static=B as= => -
        the log fails        => b2: NOT_COORDINATOR
        b joins static=B as= => b3: gen 1, follows a1
    """,
}


@pytest.mark.parametrize("title", SCENARIOS)
def test_scenario(title: str) -> None:
    Scenario().play(SCENARIOS[title])


def test_no_initial_delay_completes_at_once() -> None:
    Scenario(initial_rebalance_delay_ms=0).play(
        """
        a joins              => a1: gen 1, leads a1
        a syncs a1=x         => a1: assigned x
        b joins              => -
        a joins              => a1: gen 2, leads a1 b1; b1: gen 2, follows a1
        """
    )


def test_a_full_group_turns_newcomers_away() -> None:
    Scenario(max_size=2).play(
        TWO_STABLE
        + """
        c joins v4           => c: GROUP_MAX_SIZE_REACHED
        a joins              => -
        b joins              => a1: gen 2, leads a1 b1; b1: gen 2, follows a1
        b leaves             => b1: ok
        c joins              => -
        a joins              => a1: gen 3, leads a1 c2; c2: gen 3, follows a1
        """
    )


def test_a_group_over_its_size_after_a_restart_shrinks() -> None:
    scenario = Scenario()
    scenario.play(TWO_STABLE)
    scenario.settings = scenario.settings._replace(max_size=1)
    scenario.play(
        """
        the broker restarts
        the group is PreparingRebalance
        b joins              => -
        a joins              => a: GROUP_MAX_SIZE_REACHED; b1: gen 2, leads b1
        """
    )


def test_a_group_without_members_waits_for_nothing() -> None:
    scenario = Scenario()
    scenario.play(TWO_STABLE + "a leaves => a1: ok\n b leaves => b1: ok")
    assert scenario.group.next_deadline_ms() is None
