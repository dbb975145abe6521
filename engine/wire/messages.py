"""All that crosses the border between front and loop: Command in, Event out.

Every command carries a number `n` and is answered by exactly one Done or Refused with the same `n`,
when it has taken effect. What a turn produces comes as Tokens, then exactly one TurnEnded.
Ids are token ids; positions and lengths count tokens of the session's log.

A message's tag is its name on the link. The tags are strings of their own, which stay when a class
is renamed.

A session is held by one front. Its fence only grows: who comes with a higher one takes the session
over, who comes with a lower one is refused.
"""

from typing import Literal

import msgspec

TurnEndReason = Literal["stop", "length", "cancelled", "failed"]
KVResidency = Literal["hot", "host", "recomputed", "none"]
"""Where a session's KV was found when its turn began (`none`: there was nothing to find)."""


class Grammar(msgspec.Struct, frozen=True):
    """What a turn may say. `json`: an object; `json_schema`: what the schema in `source` describes;
    `lark`: what a grammar in llguidance's Lark accepts."""

    kind: Literal["json", "json_schema", "lark"]
    source: str = ""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn's ids are drawn, and when it ends. Checked by `Engine.generate`, trusted after."""

    max_tokens: int | None = None
    """None: up to the session's limit."""
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None
    """None: off; n: of the drawn id and the n likeliest."""
    seed: int | None = None
    """None: drawn by the engine and reported in TurnEnded."""
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    """Go on past `stop_ids` and `stop`, to max_tokens."""
    grammar: Grammar | None = None
    """None: anything. At its end only `stop_ids` may follow; there must be one."""


class NumberedCommand(msgspec.Struct, frozen=True):
    n: int


class FencedCommand(NumberedCommand, frozen=True, kw_only=True):
    """A command on a session; `fence` is that of the front's right to it."""

    fence: int = 0


class OpenSession(FencedCommand, frozen=True, tag="Open"):
    """`digest`: of the model, tokenizer and chat template that its ids are of (fingerprint);
    empty: not told."""

    session: str
    streaming: bool = True
    timeout_s: float | None = None
    capacity_tokens: int | None = None
    scope: str = ""
    digest: str = ""


AppendSpan = Literal["firm", "provisional", "commit"]


class AppendIds(FencedCommand, frozen=True, tag="Append"):
    """`firm` ids go before a provisional span, if there is one. `provisional` ids become that span,
    in place of what it was; `commit` ids take its place for good. What they have in common with the
    span's beginning keeps its KV.

    The other fields are for regular sessions: go on after the end of turn `after` instead of the
    present log; `replace` that turn and all that followed it (without `after`: everything);
    `drop_previous_output` takes out of it what the last turn has said, as far as it is still there,
    and leaves what was appended behind that; keep only [:offset] of the log.
    """

    session: str
    ids: list[int]
    span: AppendSpan = "firm"
    after: str | None = None
    replace: bool = False
    drop_previous_output: bool = False
    offset: int = 0


class Generate(FencedCommand, frozen=True, tag="Generate"):
    """`resumed`: how many ids at the end of the log this turn has said already, elsewhere.
    `asked_s`: when it was asked for, by the monotonic clock where both sides share one; else 0."""

    session: str
    turn: str
    sampling: Sampling
    resumed: int = 0
    asked_s: float = 0.0


class CancelTurn(FencedCommand, frozen=True, tag="Cancel"):
    """Ends the turn, if it is still the one in flight or queued. `drop` forgets what it said."""

    session: str
    turn: str | None = None
    drop: bool = False


class PauseTurn(FencedCommand, frozen=True, tag="Pause"):
    """Ends the running turn without a TurnEnded; Attach goes on with it."""

    session: str


class RewindSession(FencedCommand, frozen=True, tag="Rewind"):
    session: str
    to: int


class ForkSession(FencedCommand, frozen=True, tag="Fork"):
    session: str
    child: str
    at: int | None = None
    child_fence: int = 0


class CloseSession(FencedCommand, frozen=True, tag="Close"):
    session: str
    keep_prefix: bool = True


class GetSessionInfo(FencedCommand, frozen=True, tag="Info"):
    session: str


class AttachSession(FencedCommand, frozen=True, tag="Attach"):
    """The session as its front knows it: opened if it is not here, else brought to these ids with
    the fewest tokens. Whatever waited on it, for whomever, is refused.

    A turn named by `generate` that runs here, or has ended, and has said what stands in `ids`, goes
    on: what it has said since comes as Tokens, and its TurnEnded if it has ended. Else it begins
    here, after the `generate.resumed` ids it has said. Any other turn is over. `paused`: it rests
    where it was, until it is attached again or cancelled."""

    opened: OpenSession
    ids: list[int]
    provisional: list[int] = []
    generate: Generate | None = None
    paused: bool = False
    apart: int = 0
    """Above 0: engines have died while they computed this session. It runs in steps of its own
    until all of `ids` and so many more are computed."""

    @property
    def session(self) -> str:
        return self.opened.session


class ListSessions(NumberedCommand, frozen=True, tag="ListSessions"):
    pass


class GetStats(NumberedCommand, frozen=True, tag="Stats"):
    pass


class Ping(NumberedCommand, frozen=True, tag="Ping"):
    """Answered at once by a Pong, whatever the device does."""

    front: str = ""
    """Who asks, the same over all its links: of two of them the one before is lost. Empty: not
    told."""


class LocateSession(NumberedCommand, frozen=True, tag="Locate"):
    """Answered at once: Done if the session is here, whoever holds it."""

    session: str


class GetModelFiles(NumberedCommand, frozen=True, tag="Files"):
    """Answered at once with the model's files that front and loop both read: its tokenizer, its
    configuration, its chat template."""


class DrainEngine(NumberedCommand, frozen=True, tag="Drain"):
    """From now on sessions and turns are refused; what runs goes on."""


SessionCommand = (
    OpenSession
    | AttachSession
    | AppendIds
    | Generate
    | CancelTurn
    | PauseTurn
    | RewindSession
    | ForkSession
    | CloseSession
    | GetSessionInfo
)
LoopCommand = SessionCommand | ListSessions | GetStats | DrainEngine
EngineCommand = LoopCommand | Ping | LocateSession | GetModelFiles


class SessionInfo(msgspec.Struct, frozen=True):
    session: str
    streaming: bool
    state: Literal["idle", "prefilling", "generating"]
    length: int
    """Tokens in the session's log: the tip."""
    provisional: int
    """Tokens of a provisional span behind it."""
    committed: int
    """Tokens of it whose KV is on the device."""
    held_pages: int
    host_pages: int
    """Pages of it in the host tier, ..."""
    host_tokens: int
    """... and the tokens whose KV they hold."""
    lost_tokens: int
    """Tokens whose KV there was, and is not any more: they are computed again."""
    turn: str | None
    idle_s: float
    """Since the end of the last turn or append."""


class EngineStats(msgspec.Struct, frozen=True):
    """The books. free + tree + leased == total."""

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
    """Seconds the device has worked."""
    failed_steps: int
    failed_audits: int
    retractions: int
    evicted_pages: int
    host_pages_total: int
    host_pages_used: int
    pages_spilled: int
    pages_recalled: int


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How full an engine is."""

    sessions: int = 0
    turns: int = 0
    """Running and queued."""
    rows: int = 1
    """Turns in one step at most."""
    pages_leased: int = 0
    """Held by sessions."""
    pages_total: int = 1
    draining: bool = False
    step_s: float = 0.0
    """For so long the device has been at the step that it is at."""


class Predecessor(msgspec.Struct, frozen=True):
    """An engine process that has ended, as the next one of its parent found it."""

    incarnation: str
    steps: list[list[bytes]]
    """The rows of each step that was in flight, as flight_recorder.mark_of names their sessions.
    Empty: it ended between steps."""


class EngineReady(msgspec.Struct, frozen=True, tag="Ready"):
    """The loop's first event: what was loaded. `folder` holds config and tokenizer."""

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
    """Names this life of the engine process: never used again."""
    digest: str = ""
    """Digest of the model, its tokenizer and its chat template (fingerprint)."""
    predecessor: Predecessor | None = None
    """Record of the engine process before this one; None if it left none."""


class ModelLoading(msgspec.Struct, frozen=True, tag="Loading"):
    what: str
    fraction: float


class ModelLoadFailed(msgspec.Struct, frozen=True, tag="LoadFailed"):
    message: str


class CommandDone(msgspec.Struct, frozen=True, tag="Done"):
    n: int
    length: int = 0
    """The session's length after the command took effect."""
    info: SessionInfo | None = None
    sessions: list[SessionInfo] | None = None
    stats: EngineStats | None = None
    files: dict[str, bytes] | None = None
    """By name."""


class CommandRefused(msgspec.Struct, frozen=True, tag="Refused"):
    n: int
    code: str
    message: str
    field: str | None = None


def refuse_malformed(n: int, problem: str) -> CommandRefused:
    """The answer to a command that is none of ours."""
    return CommandRefused(n, "bad_request", f"the command cannot be read: {problem}")


class TokenLogprobs(msgspec.Struct, frozen=True):
    drawn: float
    top: list[tuple[int, float]]


class TurnTokens(msgspec.Struct, frozen=True, gc=False, tag="Tokens"):
    """Output ids [first, first + len(ids)) of a turn."""

    session: str
    turn: str
    first: int
    ids: list[int]
    logprobs: list[TokenLogprobs] | None = None

    def select_new(self, received: int) -> "TurnTokens | None":
        """What of it is new to who has the first `said`. None: nothing, or it is not what comes
        next; then that is told again (Attach)."""
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
    """The session's length now; with `drop`, what it was before the turn."""
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, how many were found in KV when the turn was first taken up."""
    output_tokens: int
    seed: int
    residency: KVResidency = "none"
    stop: str | None = None
    """The stop string that ended it."""
    queued_s: float = 0.0
    """From when it was asked for until its first step."""
    prefill_s: float = 0.0
    """From first taken up to the first id."""
    model_s: float = 0.0
    """Seconds the device worked, for whomever, from when the turn was asked for to its end."""
    error: str | None = None


class SessionExpired(msgspec.Struct, frozen=True, tag="Expired"):
    session: str


class SessionSuperseded(msgspec.Struct, frozen=True, tag="Superseded"):
    """Another front holds the session now; this one hears no more of it."""

    session: str
    fence: int
    """Of the other: who has taken it back since has a higher one."""


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
