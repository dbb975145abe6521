"""Link: carries messages between engine client and engine. No other code depends on the two running
in different processes.

A frame is a 4-byte little-endian length and a MessagePack array of tagged structs. Messages sent in
one iteration of the event loop share one frame. Over a network the first frames are the handshake;
no messages are read or sent before the handshake is complete.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast, get_args

import msgspec

from continuo.engine.errors import LinkRefused
from continuo.engine.wire import handshake
from continuo.engine.wire.handshake import Handshake

log = logging.getLogger(__name__)

Sent = TypeVar("Sent")
Received = TypeVar("Received")

FRAME_BYTES_MAX = 256 << 20
"""Maximum size of a frame after the handshake; receiving a longer one aborts the link."""
QUEUED_MESSAGES_MAX = 100_000
"""Maximum messages queued for a peer that does not read; more abort the link."""
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors that msgspec raises for malformed input."""


class _MessageNumber(msgspec.Struct):
    """Any message with a number, decoded for its number `n` only."""

    n: int


class Link(asyncio.Protocol, Generic[Sent, Received]):
    """Asyncio protocol of one end of a link."""

    def __init__(
        self,
        decoder: "msgspec.msgpack.Decoder[list[Received]]",
        on_messages: Callable[[list[Received]], None],
        on_lost: Callable[[], None],
        handshake: Handshake | None = None,
        on_established: Callable[[], None] = lambda: None,
        make_refusal: Callable[[int, str], Sent] | None = None,
    ) -> None:
        """Args:
        decoder: decodes a frame after the handshake: a list of messages.
        on_messages: called with the messages of a frame, in the order sent.
        on_lost: called once, whichever end closed the link, also after a failed handshake.
        handshake: this end of the handshake, whose time the caller limits. None: messages are sent
            and received from the start.
        on_established: called when messages can be sent, before the first one is received.
        make_refusal: builds the reply to an undecodable message from its number `n` and the reason;
            the other messages of its frame are still passed to `on_messages`. None: a frame with an
            undecodable message aborts the link.
        """
        self._decoder = decoder
        self._make_refusal = make_refusal
        self._encoder = msgspec.msgpack.Encoder()
        self._on_messages = on_messages
        self._on_lost = on_lost
        self._handshake = handshake
        self._on_established = on_established
        self.handshake_error: LinkRefused | None = None
        """Reason why the handshake failed, if it did."""
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._to_send: list[Sent] = []
        self._is_paused = False
        """Whether the peer reads more slowly than this end sends."""

    def send(self, *messages: Sent) -> None:
        """Queue messages, to be sent in one frame after this iteration of the event loop. Once the
        link is lost, which `on_lost` reports, messages are silently discarded."""
        if not self._to_send:
            asyncio.get_running_loop().call_soon(self._flush)
        self._queue(messages)

    def send_all(self, messages: Sequence[Sent]) -> None:
        if messages:
            self.send(*messages)

    def send_now(self, messages: Sequence[Sent]) -> None:
        """Send messages at once, in the same frame as messages queued before."""
        if messages:
            self._queue(messages)
            self._flush()

    def _queue(self, messages: Sequence[Sent]) -> None:
        self._to_send.extend(messages)
        if len(self._to_send) > QUEUED_MESSAGES_MAX:
            log.warning("closing a link: its peer does not read")
            self.abort()

    def close(self) -> None:
        """Send queued messages, then close the link."""
        self._is_paused = False
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the link at once, discarding queued messages."""
        self._to_send.clear()
        if self._transport is not None:
            transport, self._transport = self._transport, None
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is not a subclass
        # uvloop sends each write at once if it exceeds the limit. The limit is not 0: an empty
        # buffer reaches that, and then TLS pauses a link that has sent everything.
        self._transport.set_write_buffer_limits(1, 0)
        if self._handshake is None:
            self._on_established()
            return
        if first := self._handshake.start():
            self._write(first)

    def data_received(self, data: bytes) -> None:
        buffer = self._received
        buffer += data
        start = 0
        while len(buffer) - start >= 4:
            size = int.from_bytes(buffer[start : start + 4], "little")
            if size > (
                FRAME_BYTES_MAX if self._handshake is None else handshake.HANDSHAKE_FRAME_BYTES_MAX
            ):
                self.abort()
                return
            if len(buffer) - start - 4 < size:
                break
            frame = bytes(buffer[start + 4 : start + 4 + size])
            start += 4 + size
            if self._handshake is not None:
                self._receive_handshake(self._handshake, frame)
            else:
                self._receive(frame)
            if self._transport is None:
                return
        del buffer[:start]

    def _receive(self, frame: bytes) -> None:
        """Decode a frame and pass its messages to `on_messages`. An undecodable frame aborts this
        link only."""
        try:
            messages = self._decoder.decode(frame)
        except DECODE_ERRORS as error:
            valid = self._decode_valid(frame)
            if valid is None:
                log.warning("closing a link: cannot decode a frame: %s", error)
                self.abort()
                return
            messages = valid
        if messages:
            self._on_messages(messages)

    def _decode_valid(self, frame: bytes) -> list[Received] | None:
        """Decode a frame that cannot be decoded as a whole, message by message. Returns the valid
        messages; refuses the others with the replies of `make_refusal`. Returns None if no message
        can be refused: the frame is not an array of numbered messages, or this end has no
        `make_refusal`."""
        if self._make_refusal is None:
            return None
        [kind] = get_args(self._decoder.type)
        decoder = msgspec.msgpack.Decoder(kind)
        messages: list[Received] = []
        try:
            for raw in msgspec.msgpack.decode(frame, type=list[msgspec.Raw]):
                try:
                    messages.append(decoder.decode(raw))
                except DECODE_ERRORS as error:
                    numbered = msgspec.msgpack.decode(raw, type=_MessageNumber)
                    log.warning("refused message %d: %s", numbered.n, error)
                    self.send(self._make_refusal(numbered.n, str(error)))
        except DECODE_ERRORS:
            return None
        return messages

    def _receive_handshake(self, handshake: Handshake, frame: bytes) -> None:
        try:
            reply = handshake.receive(frame)
        except LinkRefused as error:
            self.handshake_error = error
            self.abort()
            return
        if reply is not None:
            self._write(reply)
        if handshake.is_complete:
            self._handshake = None
            self._on_established()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as in asyncio
        self._transport = None
        self._on_lost()
        self.release()

    def release(self) -> None:
        """Release the callbacks of a link that is lost, or will never be made: what they belong to
        refers to the link."""
        self._on_messages, self._on_lost, self._on_established = _ignore, _ignore, _ignore

    def _flush(self) -> None:
        if self._is_paused:
            return
        messages, self._to_send = self._to_send, []
        if messages and self._transport is not None:
            self._write_all(messages)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        """Send what was queued while the peer did not read, in one frame."""
        self._is_paused = False
        self._flush()

    def _write_all(self, messages: Sequence[Sent]) -> None:
        """Send messages in one frame, or in several where one would exceed FRAME_BYTES_MAX."""
        body, half = self._encoder.encode(messages), len(messages) // 2
        if len(body) > FRAME_BYTES_MAX and half:
            self._write_all(messages[:half])
            self._write_all(messages[half:])
        else:
            self._write(body)

    def _write(self, body: bytes) -> None:
        assert self._transport is not None
        self._transport.write(len(body).to_bytes(4, "little") + body)


def _ignore(*_: object) -> None:
    pass
