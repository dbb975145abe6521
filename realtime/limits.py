"""Every bound of the realtime side, with its unit. What happens at each is said beside it."""

import msgspec

EVENT_ID_CHARS_MAX = 512
"""A longer client `event_id` is an error."""
ITEM_ID_CHARS_MAX = 128
TEXT_CHARS_MAX = 512 * 1024
"""One content part, or the instructions; more would not fit the frame limit of some clients when
it is echoed."""
PARTS_MAX = 64
TOOLS_MAX = 128
NAME_CHARS_MAX = 64
METADATA_PAIRS_MAX = 16
METADATA_VALUE_CHARS_MAX = 512
STOP_STRINGS_MAX = 16
STOP_CHARS_MAX = 256
REALTIME_INPUT_ITEMS_MAX = 1024
RESPONSES_INPUT_ITEMS_MAX = 4096
"""Of one response; an agent may resend all it has."""
FUNCTION_NAME_CHARS_MAX = 128
STREAM_ID_CHARS_MAX = 128
FRAME_VALUES_MAX = 32 * 1024
"""Values in one client event, strings being one each; more take too long to read."""
BODY_VALUES_MAX = 40 * 1024
"""The same, in what an agent sends at once over the Responses API."""
BODY_ESCAPES_MAX = 4 * 1024 * 1024
"""Backslashes in the same; more take too long to read."""
REQUEST_CHARS_MAX = 4 * 1024 * 1024
"""All texts of one request together: instructions, tools, items, whatever the context of the model
holds. No single operation on so long a string takes 50 ms, and its tokens take 150 MB at most."""
OUTPUT_TOKENS_MAX = 1_000_000
TOP_K_MAX = 1_000_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds that an operator may want to move."""

    frame_bytes_max: int = 1024 * 1024
    """Over it an `error` event, the connection goes on; over twice it close 1009."""
    bad_frames_max: int = 32
    """Consecutive frames that are no event of the protocol; then close 1007."""
    outbox_bytes_max: int = 1024 * 1024
    """Waiting for a slow reader. Over it we stop reading from that client; over it for
    `outbox_over_s_max`, or over four times it, close 1013."""
    outbox_over_limit_s_max: float = 10.0
    off_loop_chars_min: int = 4 * 1024
    """Longer texts are tokenised on a thread, not on the event loop, as are those that are added to
    a conversation of more tokens. The worst text takes about 6 us a character, several times."""
    out_of_band_responses_max: int = 8
    """Out-of-band responses of one session at the same time; more are refused."""
    command_timeout_s: float = 15.0
    """How long a client event waits for the engine (it may be starting again); then an `error` that
    says to try again."""
    close_timeout_s: float = 5.0
    """How long the end of a session waits for the engine; what is left is done when it is back."""
    connection_lifetime_s: float = 3600.0
    """How long a connection may last; then an `error` event, and close 1000."""
    connected_sessions_max: int = 10_000
    """Sessions with a client; more are told to come back (close 1013). As many again may wait for
    theirs in memory; of more the oldest wait in the store alone."""
    response_frame_bytes_max: int = 16 * 1024 * 1024
    """A frame or a body of the Responses API; over it an error, over five quarters of it close
    1009: to receive a longer one takes the event loop over 50 ms."""
    incoming_bytes_max: int = 160 * 1024 * 1024
    """Bytes in one server process: heads, bodies and messages under way, or not received by the
    application. Over it the connection with the most unfinished bytes is closed, HTTP 503 or close
    1013. Room for eight of the largest messages, or for 80 of 2 MiB."""
    stream_queues_max: int = 32
    """Named lanes of one connection that have work; more are refused."""
    running_responses_max: int = 16
    """Of one connection at the same time; more wait."""
    waiting_responses_max: int = 256
    """Of one connection; more are refused."""
    waiting_response_chars_max: int = 32 * 1024 * 1024
    """Length of the frames that asked for them; more are refused. The same, in bytes, for steering
    inputs that wait. Room for two of the longest."""
    pending_steers_max: int = 16
    """Accepted and not yet part of a response, of one connection; more are refused."""
    continuation_points_max: int = 10_000
    """Responses in memory that one can go on from; the least recently used go first. Those that are
    stored can still be gone on from, their KV computed again."""
    connection_continuation_points_max: int = 256
    """Of them, those that only their own connection may go on from (`store: false`)."""
    continuation_tokens_max: int = 8_000_000
    """Tokens of their conversations, counted once a line: about 40 bytes each."""
    continuation_point_ttl_s: float = 3600.0
    """How long a response that nobody goes on from stays in memory."""
    stored_response_ttl_s: float = 30 * 86400.0
    """How long a stored response can be gone on from."""
    unread_response_grace_s: float = 30.0
    """How long a stored response is made on after its last reader is gone; then it ends."""
    send_timeout_s: float = 10.0
    """How long one frame may take to leave; then close 1013."""
    liveness_timeout_s: float = 10.0
    """How long a client that wants a session which another connection has may take to answer a
    ping; then close 1013."""
    resume_window_s: float = 900.0
    """How long a session waits for a client that has dropped; then it is gone."""
    detach_grace_s: float = 30.0
    """How long an answer is made for a client that has dropped; then it pauses."""
    requests_per_minute: int = 0
    """Responses a tenant may begin, on any endpoint of this process; more are refused until the
    bucket has filled again. 0: no limit."""
    tokens_per_minute: int = 0
    """Tokens computed for a tenant: those of prompts that were not in KV, and those generated."""
    sweep_interval_s: float = 1.0
    """Between two looks for sessions whose time is over."""
