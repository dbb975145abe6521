"""Messages of the link between gateway and engine: EngineCommand to the engine, EngineEvent from
it.

Every command has a number `n`. Unless `n` is 0, the engine sends exactly one reply with the same
`n`: CommandDone when the command has taken effect, else CommandRefused. The reply to a Ping is a
Pong. A turn emits TurnTokens, then exactly one TurnEnded. Ids are token ids; positions and lengths
count tokens of the session's token log.

The tag of a message is its name on the link. Tags and field names are part of the link protocol:
they stay the same when a class is renamed. In them `front` means the client, that is, a gateway.

A session is attached to one client at a time, under a fence (fencing token) that only grows: a
client with a higher fence takes the session over; a command with a lower fence is refused.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from continuo.engine.sampling import Sampling
from continuo.engine.wire.bounds import find_field

TurnEndReason = Literal["stop", "length", "cancelled", "failed"]
KVResidency = Literal["hot", "host", "recomputed", "none", "unknown"]
"""Place where the KV of a session was found when its turn began.

`hot`: on the device. `host`: partly in the host tier. `recomputed`: partly lost. `none`: the
session had no KV. `unknown`: another server computes, and does not report the place."""


Weight = Annotated[float, msgspec.Meta(ge=0.001, le=1000.0)]
"""Share of a group, relative to those of other groups."""
Traceparent = Annotated[str, msgspec.Meta(max_length=64)]
"""W3C trace context of the span that a client has begun for a turn; empty: none."""
NO_REPLY = 0
"""Value of `n` in a command that needs no reply, such as those that the engine itself creates."""


class NumberedCommand(msgspec.Struct, frozen=True):
    n: int


class FencedCommand(NumberedCommand, frozen=True, kw_only=True):
    """A command on a session; `fence` is the client's fencing token for that session."""

    fence: int = 0


class OpenSession(FencedCommand, frozen=True, tag="Open"):
    """Open a session with an empty token log. `timeout_s` is its idle timeout; None: none.
    `capacity_tokens` is the maximum length of its log; None: the engine's limit. `scope` is its
    cache scope. `digest` is the fingerprint of the model, tokenizer and chat template that its ids
    are for; empty if unknown. Sessions with the same `group` share rows, pages and prefill fairly
    with those of other groups; `weight` is the share of the group relative to others."""

    session: str
    streaming: bool = True
    timeout_s: float | None = None
    capacity_tokens: int | None = None
    scope: str = ""
    digest: str = ""
    group: str = ""
    weight: Weight = 1.0


AppendSpan = Literal["firm", "provisional", "commit"]


class AppendIds(FencedCommand, frozen=True, tag="Append"):
    """Append ids to the log of a session.

    The field `span` selects the change: `firm` inserts the ids before the provisional span, if
    there is one; `provisional` replaces that span with the ids; `commit` replaces the span with the
    ids and makes them firm. The common prefix of the new ids and the old span keeps its KV.

    The other fields are for regular sessions and choose the log to append to. `after`: id of a
    finished turn; the log at its end instead of the current log. `replace`: discard the turns that
    continue `after` (without `after`: all turns, and the log). `drop_previous_output`: remove the
    output of the last turn, as far as the output is still in the log, and keep ids appended after
    it. `offset`, unless 0: cut what is left to its first `offset` ids before appending; a negative
    `offset` cuts that many ids off its end.
    """

    session: str
    ids: list[int]
    span: AppendSpan = "firm"
    after: str | None = None
    replace: bool = False
    drop_previous_output: bool = False
    offset: int = 0


class Generate(FencedCommand, frozen=True, tag="Generate"):
    """Start a turn with the id `turn`. `resumed` is the number of ids at the end of the log that
    the turn has already emitted, on another engine. `asked_s` is the time of the request on the
    monotonic clock if client and engine share one; else 0."""

    session: str
    turn: str
    sampling: Sampling
    resumed: int = 0
    asked_s: float = 0.0
    traceparent: Traceparent = ""


class CancelTurn(FencedCommand, frozen=True, tag="Cancel"):
    """Cancel turn `turn`, which is running, paused or queued; None: the running or paused turn.
    `drop` also removes the output of the turn from the log."""

    session: str
    turn: str | None = None
    drop: bool = False


class PauseTurn(FencedCommand, frozen=True, tag="Pause"):
    """Pause the running turn, without a TurnEnded; ResumeTurn or AttachSession continues it."""

    session: str


class ResumeTurn(FencedCommand, frozen=True, tag="Resume"):
    """Continue the paused turn. No effect if no turn is paused."""

    session: str


class RewindSession(FencedCommand, frozen=True, tag="Rewind"):
    """Cut the log to its first `to` ids."""

    session: str
    to: int


class ForkSession(FencedCommand, frozen=True, tag="Fork"):
    """Open session `child` with the first `at` ids of `session` (None: all), sharing their KV.
    `child_fence` is the fence of the child."""

    session: str
    child: str
    at: int | None = None
    child_fence: int = 0


class CloseSession(FencedCommand, frozen=True, tag="Close"):
    """Close a session and cancel its turn. `keep_prefix` leaves its KV in the radix tree, where
    other sessions can share it."""

    session: str
    keep_prefix: bool = True


class GetSessionInfo(FencedCommand, frozen=True, tag="Info"):
    session: str


class AttachSession(FencedCommand, frozen=True, tag="Attach"):
    """Make an engine's copy of a session what its client says it is.

    A session that this engine does not have is opened with `opened`. The log is changed to `ids`,
    keeping the KV of the common prefix; `provisional` becomes its provisional span. All commands
    that are deferred on the session are refused, whichever client sent them.

    If this engine runs or has ended the turn named by `generate`, with the same prompt, and its log
    begins with `ids`, that turn continues: its output after `ids` is sent as TurnTokens, and
    TurnEnded if it has ended. Otherwise the engine starts the turn at the end of `ids`, whose last
    `generate.resumed` ids are output that the turn has emitted on another engine. Any other turn of
    the session is cancelled. `paused` leaves the turn paused until a ResumeTurn, the next
    AttachSession or a CancelTurn.
    """

    opened: OpenSession
    ids: list[int]
    provisional: list[int] = []
    generate: Generate | None = None
    paused: bool = False
    apart: int = 0
    """Above 0 for a session suspected of killing engine processes: its steps contain no other
    session until the KV of `ids`, and of this many more ids, is computed."""

    @property
    def session(self) -> str:
        return self.opened.session


class ListSessions(NumberedCommand, frozen=True, tag="ListSessions"):
    sessions: list[str] | None = None
    """The sessions to list, as far as they exist; None: all."""


class GetStats(NumberedCommand, frozen=True, tag="Stats"):
    pass


class Ping(NumberedCommand, frozen=True, tag="Ping"):
    """Liveness probe, answered by a Pong at once, even while the device is busy."""

    front: str = ""
    """Id of the client. A new link of the same client supersedes its previous link. Empty:
    unknown."""


class LocateSession(NumberedCommand, frozen=True, tag="Locate"):
    """Find out whether this engine has a session, whichever client the session is attached to.
    Answered at once: CommandDone if the engine has the session, else CommandRefused."""

    session: str


class GetModelFiles(NumberedCommand, frozen=True, tag="Files"):
    """Get the model files that client and engine both read: tokenizer, configuration and chat
    template. Answered at once."""


class DrainEngine(NumberedCommand, frozen=True, tag="Drain"):
    """Refuse new sessions and turns from now on; running turns continue."""


SessionCommand = (
    OpenSession
    | AttachSession
    | AppendIds
    | Generate
    | CancelTurn
    | PauseTurn
    | ResumeTurn
    | RewindSession
    | ForkSession
    | CloseSession
    | GetSessionInfo
)
LoopCommand = SessionCommand | ListSessions | GetStats | DrainEngine
EngineCommand = LoopCommand | Ping | LocateSession | GetModelFiles


class SessionInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    session: str
    streaming: bool
    state: Literal["idle", "prefilling", "generating"]
    length: int
    """Tokens of the session's log, without the provisional span."""
    provisional: int
    """Tokens of the provisional span."""
    committed: int
    """Tokens whose KV is on the device."""
    held_pages: int
    host_pages: int
    """Pages of the host tier that hold KV of the session."""
    host_tokens: int
    """Tokens whose KV is in the pages counted by `host_pages`."""
    lost_tokens: int
    """Tokens whose KV was lost and will be recomputed."""
    turn: str | None
    idle_s: float
    """Seconds since the session was last used: since its last turn ended or its log last
    changed."""
    is_kv_known: bool = True
    """Whether the counts of KV are known. False where another server has evicted what it chose, and
    `committed` is what it has computed."""


class EngineStats(msgspec.Struct, frozen=True):
    """Counters and gauges of an engine. pages_free + pages_tree + pages_leased == pages_total."""

    pages_total: int
    pages_free: int
    pages_tree: int
    pages_leased: int
    sessions: int
    active_turns: int
    queued_turns: int
    steps: int
    tokens_computed: int
    tokens_drawn: int
    model_s: float
    """Total seconds of computation on the device."""
    failed_steps: int
    failed_audits: int
    retractions: int
    evicted_pages: int
    host_pages_total: int
    host_pages_used: int
    pages_spilled: int
    pages_recalled: int
    waiting_turns: int = 0
    """Turns among `active_turns` that have no pages yet."""
    sessions_on_device: int = 0
    sessions_on_host: int = 0
    """Sessions with KV in host memory; those with KV on the device alone, or none, are not
    counted."""
    audits: int = 0
    """Audits of the KV pages of an idle engine, failed ones included."""
    state_bytes_total: int = 0
    """Size of the pool of recurrent states on the device; 0: the model has none."""
    state_bytes_used: int = 0
    host_state_bytes_total: int = 0
    """Size of the pool of recurrent states in host memory."""
    host_state_bytes_used: int = 0
    state_bytes_spilled: int = 0
    """Bytes of recurrent states that were moved to host memory so far."""
    draft_rows: int = 0
    """Rows of a step with drafts."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Tokens of output that were drafts; each row with drafts has sampled one more."""
    grammar_bytes: int = 0
    """Memory of the compiled grammars that are kept."""
    grammar_bytes_max: int = 0


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Load of an engine, as reported in each Pong."""

    sessions: int = 0
    turns: int = 0
    """Turns that run or wait for admission."""
    rows: int = 1
    """Maximum rows in one step."""
    pages_leased: int = 0
    """Pages that the leases of sessions have, on their own or in the radix tree."""
    pages_total: int = 1
    draining: bool = False
    step_s: float = 0.0
    """Seconds since the step in flight began; 0 if there is none."""


class Predecessor(msgspec.Struct, frozen=True):
    """Flight record of the engine process that the same parent process ran before this one."""

    incarnation: str
    steps: list[list[bytes]]
    """Steps that were in flight when the process ended. Each is a list with one entry per row: the
    `flight_recorder.hash_session_id` of the row's session. Empty if no step was in flight."""


class EngineReady(msgspec.Struct, frozen=True, tag="Ready"):
    """Event sent once on each link, when the model is loaded. `folder` is the checkpoint folder on
    the engine's machine."""

    folder: str
    model: str
    architecture: str
    max_model_len: int
    vocab_size: int
    pages: int
    page_size: int
    device: str
    dtype: str
    load_s: float
    incarnation: str = ""
    """Unique id of this life of the engine process."""
    digest: str = ""
    """Fingerprint of the model, its tokenizer and its chat template."""
    predecessor: Predecessor | None = None
    """Flight record of the previous engine process; None if there is no record."""
    enforces_lark: bool = True
    """Whether grammars of the kind `lark` are enforced: False if another server computes that has
    only JSON schemas."""


class ModelLoading(msgspec.Struct, frozen=True, tag="Loading"):
    """Progress of loading the model: the current stage, and the fraction done, from 0 to 1."""

    what: str
    fraction: float


class ModelLoadFailed(msgspec.Struct, frozen=True, tag="LoadFailed"):
    message: str


class CommandDone(msgspec.Struct, frozen=True, tag="Done"):
    """Reply to a command that took effect. `info` is set in reply to GetSessionInfo, `sessions` to
    ListSessions, `stats` to GetStats and `files` to GetModelFiles."""

    n: int
    length: int = 0
    """Length of the session's log after the command took effect."""
    info: SessionInfo | None = None
    sessions: list[SessionInfo] | None = None
    stats: EngineStats | None = None
    files: dict[str, bytes] | None = None
    """Contents of the model files, by file name."""


class CommandRefused(msgspec.Struct, frozen=True, tag="Refused"):
    n: int
    code: str
    message: str
    field: str | None = None


def refuse_malformed(n: int, problem: str) -> CommandRefused:
    """Build the reply to a command that cannot be decoded."""
    message = f"the command cannot be decoded: {problem}"
    return CommandRefused(n, "bad_request", message, find_field(problem))


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Natural log-probabilities for one output id: that of the drawn id, and (id, log-probability)
    of the likeliest ids, likeliest first."""

    drawn: float
    top: list[tuple[int, float]]


class TurnTokens(msgspec.Struct, frozen=True, gc=False, tag="Tokens"):
    """Output ids of a turn; `first` is the index of ids[0] in the turn's output. `logprobs`: one
    entry per id; None: not requested. `interrupted`: the server that computes the turn is lost, and
    the next ids follow when it answers; `ids` is empty then. An older gateway ignores that."""

    session: str
    turn: str
    first: int
    ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    interrupted: bool | UnsetType = UNSET

    def select_new(self, received: int) -> "TurnTokens | None":
        """Return the part after the first `received` ids of the turn's output, which the caller
        already has. Returns None if there is no such part, or if ids before it are missing; missing
        ids are sent again after the next AttachSession."""
        if self.first == received:
            return self
        known = received - self.first
        if not 0 < known < len(self.ids):
            return None
        logprobs = None if self.logprobs is None else self.logprobs[known:]
        return TurnTokens(self.session, self.turn, received, self.ids[known:], logprobs)


class TurnEnded(msgspec.Struct, frozen=True, tag="TurnEnded"):
    session: str
    turn: str
    reason: TurnEndReason
    length: int
    """Length of the session's log after the turn. Does not include output that was removed because
    the turn was cancelled with `CancelTurn.drop`."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose KV existed when the turn was first admitted, and was not computed since
    the last turn of the session ended."""
    output_tokens: int
    seed: int
    residency: KVResidency = "none"
    stop: str | None = None
    """The stop string that ended the turn."""
    queued_s: float = 0.0
    """Seconds from the request to the first step of the turn."""
    prefill_s: float = 0.0
    """Seconds from the first step of the turn to its first output id."""
    model_s: float = 0.0
    """Seconds that the device computed, for any session, from the request to the end of the
    turn."""
    error: str | None = None
    computed_tokens: int = 0
    """Tokens before the output that were computed for the session since its last turn ended: ahead
    of the turn too, and those of words that were replaced."""
    prefilled_after_commit: int = 0
    """Number of `computed_tokens` that were computed after the turn was requested."""
    traced: bool = False
    """Whether the engine exports spans of the turn, below that of `Generate.traceparent`."""


class SessionExpired(msgspec.Struct, frozen=True, tag="Expired"):
    """The session was closed by its idle timeout."""

    session: str


class SessionSuperseded(msgspec.Struct, frozen=True, tag="Superseded"):
    """Another client has taken the session over; this one receives no more of its events."""

    session: str
    fence: int
    """Fence of the other client. A client that has taken the session back in the meantime has a
    higher fence."""


class Pong(msgspec.Struct, frozen=True, tag="Pong"):
    load: EngineLoad


EngineEvent = (
    EngineReady
    | ModelLoading
    | ModelLoadFailed
    | CommandDone
    | CommandRefused
    | TurnTokens
    | TurnEnded
    | SessionExpired
    | SessionSuperseded
    | Pong
)
