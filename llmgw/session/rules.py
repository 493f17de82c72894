"""What the link decides. Nothing in here can do anything: no clock, no socket, no dice.

The rules are those of docs/protocol.md, section "The session".
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from llmgw.backoff import delays, jittered
from llmgw.config.address import Address, Complaint, parse
from llmgw.wire import MAX_LINE, ReplicaStatus

# The control plane may ask for another pace, within these.
HEARTBEAT_MIN = 1.0
HEARTBEAT_MAX = 60.0
# Missed intervals after which a stream is dead, and the least a lease lasts.
MISSED = 3
# Refusals that a person has to clear up: no use in asking again quickly.
STUBBORN = frozenset({"node_in_use", "identity_mismatch", "protocol"})
# Refusals that are a problem as long as they last: the reason alone is no help.
TOLD = STUBBORN | {"stale_epoch"}
# The longest that a `retry_after_s` is believed.
RETRY_AFTER_MAX = 300.0
# Seconds in which standbys alone answer before that is no election any more.
ELECTION = 60.0
# A session this often shorter than the first back-off is not "lost" but flapping.
FLAPS = 3


def heartbeat(said: float | None, written: float) -> float:
    """Seconds between heartbeats: what the control plane says, within limits."""
    if said is None:
        return written
    return min(max(said, HEARTBEAT_MIN), HEARTBEAT_MAX)


def lease(said: float | None, beat: float) -> float:
    """Seconds until the control plane gives up on a silent node."""
    return max(said or 0.0, MISSED * beat)


def patience(leased: float, beat: float) -> float:
    """How long one heartbeat waits for its answer.

    Two of them, and as long again to get to another server, fit between a beat that
    fails and the end of the lease.
    """
    return min((leased - beat) / 4, 5.0)


def max_line(said: int | None) -> int:
    """How long a line may be; what a control plane says is believed up to a point."""
    return min(said, 16 * MAX_LINE) if said and said > 0 else MAX_LINE


def next_beat(deadline: float, beat: float, now: float) -> float:
    """From the deadline and not from the last answer, or slow answers add up until a
    lease is missed. Who is late beats at once, and not once for every beat missed.
    """
    return max(deadline + beat, now)


def may_lead(epoch: int, seen: int) -> bool:
    """A lower epoch is that of a leader who has not noticed yet."""
    return epoch >= seen


def order(configured: Iterable[str], learned: Iterable[str]) -> tuple[str, ...]:
    """The servers of one round: those of the file first and always."""
    return tuple(dict.fromkeys((*configured, *learned)))


def earlier(servers: Iterable[str], present: str) -> tuple[str, ...]:
    """Those that come before the one we are with: where fail-back would lead."""
    before: list[str] = []
    for server in servers:
        if server == present:
            break
        before.append(server)
    return tuple(before)


def learnable(
    named: Iterable[str], configured: Collection[str], *, tls: bool
) -> tuple[str, ...]:
    """What to keep of the servers that a control plane names, in its order."""
    return tuple(
        dict.fromkeys(
            server
            for server in named
            if is_server(server, tls=tls)
            and not any(same_server(server, one) for one in configured)
        )
    )


def is_server(server: str, *, tls: bool) -> bool:
    scheme = "https://" if tls else "http://"
    return server.startswith(scheme) and isinstance(parse(server), Address)


def changed(
    now: Iterable[ReplicaStatus], acked: Mapping[str, ReplicaStatus]
) -> tuple[ReplicaStatus, ...]:
    """Those that say something else than the control plane has already heard."""
    return tuple(
        status
        for status in now
        if status.id not in acked or timeless(status) != timeless(acked[status.id])
    )


def urgent(now: Iterable[ReplicaStatus], heard: Mapping[str, ReplicaStatus]) -> bool:
    """News that should not wait for the next beat; progress can."""
    return any(
        status.id not in heard or _settled(status) != _settled(heard[status.id])
        for status in now
    )


def _settled(status: ReplicaStatus) -> ReplicaStatus:
    return msgspec.structs.replace(timeless(status), progress=None)


def timeless(status: ReplicaStatus) -> ReplicaStatus:
    # Its age grows by itself and is no news.
    return msgspec.structs.replace(status, since_s=0.0)


class Round:
    """One pass over the servers: each is offered once, in order, hints first.

    >>> pass_over = Round(("a", "b", "c"))
    >>> next(pass_over)
    'a'
    >>> pass_over.prefer("c")
    >>> list(pass_over)
    ['c', 'b']
    """

    def __init__(self, servers: Iterable[str], hint: str | None = None) -> None:
        self._left = list(servers)
        self.prefer(hint)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if not self._left:
            raise StopIteration
        return self._left.pop(0)

    def prefer(self, hint: str | None) -> None:
        """A leader named by another server: believed only if it is one of ours."""
        if hint is None:
            return
        for server in self._left:
            if same_server(server, hint):
                self._left.remove(server)
                self._left.insert(0, server)
                return

    def put_back(self, servers: Iterable[str]) -> None:
        """They were being tried when another won; nothing is known of them."""
        self._left[:0] = servers


def same_server(one: str, other: str) -> bool:
    """Spelled otherwise, but the same door: case, default port, trailing slash."""
    first, second = parse(one), parse(other)
    if isinstance(first, Complaint) or isinstance(second, Complaint):
        return False
    return first.key == second.key


class Waits:
    """How long to wait after each full round without success.

    Doubling to the longest, each drawn from its upper half: nobody is there, and need
    not be asked often. It is otherwise where a standby answered. Then the network is
    well and a leader is being elected, and a wait that had doubled would go on long
    after that: the base and up to half of it more, for a time. So no node asks a server
    twice within the base, however many of them lost their leader at once, and each is
    with the next leader one and a half bases after its election.
    """

    def __init__(self, base: float, longest: float) -> None:
        self._base = min(base, longest)
        self._longest = longest
        self._doubling = delays(base, longest)
        self._in_elections = 0.0

    def after(
        self, *, stubborn: bool, standby: bool, not_before: float, dice: float
    ) -> float:
        """Seconds. *stubborn*: only a person can help; *standby*: one answered.

        *not_before*: for how long all servers have asked to be left alone. They are
        not all asked again in the instant that it ends.
        """
        if stubborn:
            wait = jittered(self._longest, dice)
        elif standby and self._in_elections < ELECTION:
            wait = self._base * (1 + dice / 2)
            self._in_elections += wait
        else:
            wait = jittered(next(self._doubling), dice)
        if not_before <= 0:
            return wait
        return max(wait, not_before + self._base * dice / 2)
