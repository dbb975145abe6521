"""Every bound of the gateway, with its unit and with what happens when it is reached."""

from typing import Annotated

import msgspec
from msgspec import Meta

EVENT_ID_CHARS_MAX = 512
"""A longer client `event_id` is an error."""
ITEM_ID_CHARS_MAX = 128
TEXT_CHARS_MAX = 512 * 1024
"""Maximum length of the text of one content part, and of the instructions. The server echoes both;
a longer text would exceed the frame limit of some clients."""
PARTS_MAX = 64
TOOLS_MAX = 128
TOOL_DEPTH_MAX = 100
"""Maximum depth of objects and arrays within each other in the parameters of a tool."""
NAME_CHARS_MAX = 64
LOGIT_BIAS_KEYS_MAX = 1024
PROMPTS_MAX = 64
TOKEN_SESSION_TIMEOUT_S_MAX = 86_400
METADATA_PAIRS_MAX = 16
METADATA_VALUE_CHARS_MAX = 512
REALTIME_INPUT_ITEMS_MAX = 1024
RESPONSES_INPUT_ITEMS_MAX = 4096
"""Maximum number of input items of one response; an agent may resend its whole history."""
FUNCTION_NAME_CHARS_MAX = 128
STREAM_ID_CHARS_MAX = 128
FRAME_VALUES_MAX = 32 * 1024
"""Maximum number of JSON values in one client event, where a string counts as one; more take too
long to parse."""
BODY_VALUES_MAX = 40 * 1024
"""Maximum number of JSON values in a frame or body of the Responses API, in which an agent sends
its history."""
BODY_ESCAPES_MAX = 4 * 1024 * 1024
"""Maximum number of backslashes in a frame or body of the Responses API; more take too long to
parse."""
REQUEST_CHARS_MAX = 4 * 1024 * 1024
"""Maximum total length of the instructions, tools and items of one request, whatever the context of
the model. No single operation on a string of this length takes 50 ms, and its tokens take at most
150 MB."""
OUTPUT_TOKENS_MAX = 1_000_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds that an operator may change."""

    frame_bytes_max: int = 1024 * 1024
    """Size of a client event on a realtime connection. A larger one is refused with an `error`
    event and the connection stays open; one of more than twice this size closes the connection with
    1009."""
    bad_frames_max: int = 32
    """Consecutive frames that are not valid events, after which the connection is closed with
    1007."""
    outbox_bytes_max: int = 128 * 1024
    """Bytes queued for a slow reader. Above this, reading from that client stops. The connection is
    closed with 1013 if the queue stays above this for `outbox_over_limit_s_max`, or exceeds
    `outbox_snapshot_bytes_max`."""
    outbox_snapshot_bytes_max: int = 4 * 1024 * 1024
    """Bytes queued for a client at most: room for the snapshot of a long conversation."""
    outbox_over_limit_s_max: float = 10.0
    off_loop_chars_min: int = 4 * 1024
    """Tokenization of a size above this runs on a thread, not on the event loop. The size is the
    number of characters to tokenize, plus the number of tokens of the conversation whose text is
    tokenized again. The slowest text takes about 6 us per character, and may be tokenized several
    times."""
    out_of_band_responses_max: int = 8
    """Concurrent out-of-band responses of one session; more are refused."""
    command_timeout_s: float = 15.0
    """How long a client event waits for the engine, which may be restarting; then an `error` that
    asks the client to retry."""
    close_timeout_s: float = 5.0
    """How long closing a session waits for the engine. After that, the session is closed in the
    engine when the gateway has reconnected to it."""
    connection_lifetime_s: float = 3600.0
    """Maximum duration of a connection; then an `error` event, and close 1000."""
    connected_sessions_max: int = 10_000
    """Sessions with a connection; more are refused with close 1013. The same number of parked
    sessions stays in memory; above it the oldest are unloaded and stay in the store only."""
    response_frame_bytes_max: int = 16 * 1024 * 1024
    """Size of a frame or body of the Responses API. A larger one is refused with an error; a frame
    of more than 5/4 of this size closes the connection with 1009, because receiving it would occupy
    the event loop for more than 50 ms."""
    incoming_bytes_max: int = 160 * 1024 * 1024
    """Bytes of HTTP heads, HTTP bodies and WebSocket messages, over all connections of a server
    process, that are incomplete or not yet received by the application. Above this the connection
    with the most such bytes is closed, with HTTP 503 or close 1013. Room for eight of the largest
    messages, or for 80 of 2 MiB."""
    stream_queues_max: int = 32
    """Stream queues with a `stream_id` that have unfinished requests, per connection; more are
    refused."""
    running_responses_max: int = 16
    """Concurrent responses of one connection; more wait."""
    waiting_responses_max: int = 256
    """Responses queued on one connection; more are refused."""
    waiting_response_chars_max: int = 32 * 1024 * 1024
    """Total length of the `response.create` frames received on one connection whose responses are
    still queued; a frame that would exceed this is refused. The same number, in bytes, bounds the
    pending steering inputs of a connection. Room for two of the longest frames."""
    pending_steers_max: int = 16
    """Steering inputs of one connection that are accepted and not yet part of a response; more are
    refused."""
    continuation_points_max: int = 10_000
    """Continuation points in memory; the least recently used are evicted first. Stored responses
    can still be continued, with their KV computed again."""
    connection_continuation_points_max: int = 256
    """Continuation points of one connection that no other may use (`store: false`); the least
    recently used are evicted first."""
    continuation_bytes_max: int = 320 * 1024 * 1024
    """Resident bytes of all continuation points, where what several share counts once. Above this
    the least recently used are evicted, first those of the tenant that holds most, if it holds more
    than a quarter. One that takes more than a quarter alone is not kept."""
    continuation_point_ttl_s: float = 3600.0
    """How long an unused continuation point stays in memory."""
    stored_response_ttl_s: float = 30 * 86400.0
    """How long a stored response can be continued."""
    response_store_timeout_s: float = 15.0
    """How long the end of a response that is to be stored waits for an unavailable store; then the
    response has failed."""
    unread_response_grace_s: float = 30.0
    """How long a stored response is generated after its last reader has disconnected; then it is
    cancelled."""
    send_timeout_s: float = 2.0
    """How long sending one frame may take, because the client does not read; then close 1013."""
    liveness_timeout_s: float = 10.0
    """How long a client that takes over a session from another connection may take to answer a
    ping; then close 1013."""
    resume_window_s: float = 900.0
    """How long a session can be resumed after its client has disconnected; then it expires."""
    detach_grace_s: float = 30.0
    """How long a response is generated after its client has disconnected; then its generation
    pauses until the client resumes the session."""
    requests_per_minute: int = 0
    """Responses a tenant may begin, on any endpoint of this process; more are refused until the
    token bucket has refilled. 0: no limit."""
    tokens_per_minute: int = 0
    """Tokens computed for a tenant: prompt tokens that were not in KV, and generated tokens. 0: no
    limit."""
    operations_per_second: int = 10_000
    """Client events and HTTP requests of a tenant at this gateway in a second, in the mean of ten;
    more are refused. One for each of `connected_sessions_max`. 0: no limit."""
    held_bytes_max: int = 4 * 1024**3
    """Bytes that a gateway holds for a tenant: input that is not processed, events that wait for a
    client to read, and idempotency keys. Above this, new connections, responses and texts are
    refused. The idempotency keys of all sessions in memory take less. 0: no limit."""
    sweep_interval_s: float = 1.0
    """Interval between sweeps for expired sessions."""


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of one tenant, in the keys file or in a token. 0: no limit."""

    weight: Annotated[float, Meta(ge=0.001, le=1000)] = 1.0
    """Share of the engine's rows, pages and prefill under load, relative to the weights of the
    other tenants. It is sent to the engine when a session is opened or restored."""

    connections_max: Annotated[int, Meta(ge=0)] = 0
    """WebSockets and streamed HTTP responses of the tenant, at all gateways of the store together;
    more are refused."""
    sessions_max: Annotated[int, Meta(ge=0)] = 0
    """Sessions of the tenant in the store, connected or parked; more are refused."""
    running_responses_max: Annotated[int, Meta(ge=0)] = 0
    """Responses of the tenant that all gateways of the store together generate at the same time;
    more wait."""
    waiting_responses_max: Annotated[int, Meta(ge=0)] = 256
    """Responses of the tenant that wait for one of `running_responses_max`; more are refused."""
    requests_per_minute: Annotated[int, Meta(ge=0)] = 0
    """Responses that the tenant may begin in a minute, at all gateways of the store together."""
    tokens_per_minute: Annotated[int, Meta(ge=0)] = 0
    """Tokens computed for the tenant in a minute, at all gateways of the store together."""
    operations_per_second: Annotated[int, Meta(ge=0)] = 0
    """Client events and HTTP requests of the tenant in a second, at each gateway, in the mean of
    ten seconds."""
    held_bytes_max: Annotated[int, Meta(ge=0)] = 0
    """Bytes that each gateway holds for the tenant, in its memory; above it, new connections,
    responses and texts are refused."""
    stored_bytes_max: Annotated[int, Meta(ge=0)] = 0
    """Bytes that the store holds for the tenant; above it, new sessions, items and responses are
    refused."""
    retention_s: Annotated[float, Meta(ge=0)] = 0
    """How long a stored response and a parked session of the tenant are kept, where that is shorter
    than `stored_response_ttl_s` and `resume_window_s`."""

    @property
    def has_counts(self) -> bool:
        """Whether connections or turns at all gateways together are limited."""
        return bool(self.connections_max or self.running_responses_max)
