"""All that crosses the border between front and loop: Command in, Event out.

Every command carries a number `n` and is answered by exactly one Done or Refused with the same `n`,
when it has taken effect. What a turn produces comes as Tokens, then exactly one TurnEnded.
Ids are token ids; positions and lengths count tokens of the session's log.
"""

from typing import Literal

import msgspec

Reason = Literal["stop", "length", "cancelled", "failed"]
Residency = Literal["hot", "host", "recomputed", "none"]
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


class Command(msgspec.Struct, frozen=True, tag=True):
    n: int


class Open(Command, frozen=True):
    session: str
    streaming: bool = True
    timeout_s: float | None = None
    capacity_tokens: int | None = None
    scope: str = ""


AppendAs = Literal["firm", "provisional", "commit"]


class Append(Command, frozen=True):
    """`firm` ids go before a provisional span, if there is one. `provisional` ids become that span,
    in place of what it was; `commit` ids take its place for good. What they have in common with the
    span's beginning keeps its KV.

    The other fields are for regular sessions: go on after the end of turn `after` instead of the
    present log; `replace` that turn and all that followed it (without `after`: everything); forget
    what the last turn said; keep only [:offset] of the log.
    """

    session: str
    ids: list[int]
    span: AppendAs = "firm"
    after: str | None = None
    replace: bool = False
    drop_previous_output: bool = False
    offset: int = 0


class Generate(Command, frozen=True):
    """`resumed`: how many ids at the end of the log this turn has said already, elsewhere."""

    session: str
    turn: str
    sampling: Sampling
    resumed: int = 0


class Cancel(Command, frozen=True):
    """Ends the turn, if it is still the one in flight or queued. `drop` forgets what it said."""

    session: str
    turn: str | None = None
    drop: bool = False


class Rewind(Command, frozen=True):
    session: str
    to: int


class Fork(Command, frozen=True):
    session: str
    child: str
    at: int | None = None


class Close(Command, frozen=True):
    session: str
    keep_prefix: bool = True


class Info(Command, frozen=True):
    session: str


class ListSessions(Command, frozen=True):
    pass


class Stats(Command, frozen=True):
    pass


AnyCommand = Open | Append | Generate | Cancel | Rewind | Fork | Close | Info | ListSessions | Stats


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
    """Pages of it in the host tier."""
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


class Ready(msgspec.Struct, frozen=True, tag=True):
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


class Loading(msgspec.Struct, frozen=True, tag=True):
    what: str
    fraction: float


class LoadFailed(msgspec.Struct, frozen=True, tag=True):
    message: str


class Done(msgspec.Struct, frozen=True, tag=True):
    n: int
    length: int = 0
    """The session's length after the command took effect."""
    info: SessionInfo | None = None
    sessions: list[SessionInfo] | None = None
    stats: EngineStats | None = None


class Refused(msgspec.Struct, frozen=True, tag=True):
    n: int
    code: str
    message: str
    field: str | None = None


class TokenLogprobs(msgspec.Struct, frozen=True):
    drawn: float
    top: list[tuple[int, float]]


class Tokens(msgspec.Struct, frozen=True, tag=True):
    """Output ids [first, first + len(ids)) of a turn."""

    session: str
    turn: str
    first: int
    ids: list[int]
    logprobs: list[TokenLogprobs] | None = None


class TurnEnded(msgspec.Struct, frozen=True, tag=True):
    session: str
    turn: str
    reason: Reason
    length: int
    """The session's length now; with `drop`, what it was before the turn."""
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, how many were found in KV when the turn was first taken up."""
    output_tokens: int
    seed: int
    residency: Residency = "none"
    stop: str | None = None
    """The stop string that ended it."""
    queued_s: float = 0.0
    prefill_s: float = 0.0
    """From first taken up to the first id."""
    model_s: float = 0.0
    """Seconds the device worked, for whomever, from the prompt's first new ids to the end."""
    error: str | None = None


class Expired(msgspec.Struct, frozen=True, tag=True):
    session: str


AnyEvent = Ready | Loading | LoadFailed | Done | Refused | Tokens | TurnEnded | Expired
