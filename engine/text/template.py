"""A conversation as ids, made from its new messages alone.

    head                message(None, m)    message("user", m)          answer("user")   sampled ...
    ├─ BOS, system, ────┼─ opening content ─┼─ rest? opening content ───┼─ rest? header ─┼─────────
       tools               closing             closing

A chat template is a program, so nothing about it is assumed. When it is loaded it renders short
conversations with contents we can find again (_WORDS). What stands behind the last content shows
how a message closes; the part that is the same whatever follows is written with the message, the
rest ("rest?": Qwen holds several tool results in one block) with what follows. Later each message
is rendered behind such a short conversation, and only what is new in the text becomes ids.

Some templates change what they wrote before (Qwen3 drops old reasoning, Mistral moves the tools to
the last user message). `extend` says from which message on, and gives the ids from there.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from engine.errors import BadRequest, ModelError
from engine.text.jinja import Program, Refused
from engine.text.message import Message, Role, Tool, ToolCall
from engine.text.tokenizer import Tokenizer
from engine.text.tools import ToolFormat, format_of

_WORDS: dict[Role, str] = {
    "system": "zq9system9qz",
    "user": "zq9user9qz",
    "assistant": "zq9assistant9qz",
    "tool": "zq9tool9qz",
}
"""Contents that no template writes itself, that need no trimming and survive JSON."""

_SYSTEM = Message(role="system", content=_WORDS["system"])
_USER = Message(role="user", content=_WORDS["user"])
_ASSISTANT = Message(role="assistant", content=_WORDS["assistant"])
_CALL = Message(
    role="assistant", tool_calls=(ToolCall(name="look", arguments="{}", id="call00000"),)
)
_TOOL = Message(role="tool", content=_WORDS["tool"], tool_call_id="call00000")

_SHORT: dict[Role, tuple[tuple[Message, ...], ...]] = {
    "system": ((_SYSTEM,), (_USER, _ASSISTANT, _SYSTEM)),
    "user": ((_USER,), (_SYSTEM, _USER)),
    "assistant": ((_USER, _ASSISTANT), (_SYSTEM, _USER, _ASSISTANT)),
    "tool": ((_USER, _CALL, _TOOL), (_USER, _ASSISTANT, _TOOL)),
}
"""Conversations that end in a message of the role, likeliest first."""

_NEXT: tuple[Message, ...] = (
    Message(role="user", content="next"),
    Message(role="assistant", content="next"),
    _CALL,
    Message(role="tool", content="next", tool_call_id="call00000"),
    Message(role="system", content="next"),
)

_PROBE_TOOL: Tool = {
    "type": "function",
    "function": {"name": "probe_tool", "description": "", "parameters": {"type": "object"}},
}


def _probe_conversations() -> Iterator[tuple[Message, ...]]:
    """Conversations long enough to show what a template depends on, every content different."""
    said = [
        Message(role=role, content=f"said {at}")
        for at, role in enumerate(("user", "assistant", "user", "assistant", "user", "assistant"))
    ]
    thought = Message(role="assistant", content="<think>\nreason\n</think>\n\nsaid 3")
    with_calls = [*said[:3], _CALL, _TOOL, *said[3:]]
    for messages in (said, [*said[:3], thought, *said[4:]], with_calls):
        yield tuple(messages)
        yield (_SYSTEM, *messages)


class Extension(msgspec.Struct, frozen=True):
    """What a conversation becomes when messages are added."""

    keep: int
    """Messages of the history whose ids stay. Less than all: rewind to the end of these."""
    segments: list[list[int]]
    """The ids of each message from there on. Empty if they cannot be told from the next one's."""
    header: list[int]
    """What opens the assistant's turn, if that was asked for."""

    @property
    def ids(self) -> list[int]:
        """All that follows the kept messages."""
        return [id for segment in (*self.segments, self.header) for id in segment]


class ChatTemplate:
    """Append-stable rendering: a conversation is the concatenation of segments, each made from new
    messages alone. Control tokens come from the template only, never from what people write."""

    append_stable: bool
    """False: the template changes what it wrote before; `extend` says when and where."""
    supports_tools: bool
    """Whether tools given to the template appear in what it writes."""
    tool_format: ToolFormat | None
    """How the model writes calls; None: the template does not show it."""

    def __init__(
        self, source: str, tokenizer: Tokenizer, stop_ids: Sequence[int], **options: Any
    ) -> None:
        """`options` are passed to the template (enable_thinking, ...). Raises ModelError."""
        self._writer = _Writer(Program(source, tokenizer.special_names), tokenizer, options)
        self._tokenizer = tokenizer
        self.stop_ids: tuple[int, ...] = tuple(stop_ids)
        self._short: dict[Role, tuple[Message, ...]] = {
            role: found for role in _SHORT if (found := self._find_short(role))
        }
        if "user" not in self._short or "assistant" not in self._short:
            raise ModelError("chat template: it does not write out what user and assistant say")
        self._held = {role: self._find_held(role) for role in self._short}
        self._opening = self._find_opening()
        self._windowed = self._find_windowed()
        self.append_stable = self._find_append_stable()
        self.supports_tools = "probe_tool" in (self._writer.attempt([_USER], [_PROBE_TOOL]) or "")
        called = self._writer.attempt([_USER, _CALL]) or ""
        self.tool_format = format_of(_behind(called, _USER.content), _CALL.tool_calls[0].name)

    # --- the exact way ---

    def extend(
        self,
        history: Sequence[Message],
        new: Sequence[Message] = (),
        tools: Sequence[Tool] = (),
        *,
        answer: bool = False,
        sampled: bool = False,
    ) -> Extension:
        """What a conversation of `history` becomes when `new` is added, and with `answer` the
        header of the assistant's turn: exactly the ids that rendering the whole would give.

        A system message is the first of `history` or `new`. `sampled`: the last message of the
        history was drawn by the model behind the header, and closed with `ending`; its ids stay as
        they are unless the template revises it. Looks back only to the last user message, unless
        the template depends on more. A message the template refuses at this place (two questions
        in a row, where it wants them to alternate) stands as after another one.
        """
        for skipped, lead, view in self._views(history):
            found = self._extend_view(view, new, tools, answer, sampled)
            if found is None:
                break
            if found.keep > lead or not skipped:
                return msgspec.structs.replace(found, keep=found.keep + skipped)
        return self._one_by_one(history, new, tools, answer)

    def revises(
        self,
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        sampled: bool = False,
    ) -> int | None:
        """The first message of `history` whose ids change when `new` is added; None: none does."""
        keep = self.extend(history, new, tools, sampled=sampled).keep
        return keep if keep < len(history) else None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """The whole conversation at once: slow and obvious, what the segments must add up to.
        Raises BadRequest if the template refuses it."""
        text = self._writer.write(messages, tools, add_generation_prompt)
        return self._tokenizer.encode_marked(text)

    # --- one segment at a time: exact if `append_stable`, but for results of calls in a row ---

    def head(self, system: str | None, tools: Sequence[Tool] = ()) -> list[int]:
        """What stands before the first message (BOS, system message, tools); the beginning of any
        conversation with them, so that it can be computed before anything is said."""
        return self._tokenizer.encode_marked(self._head(system, tools))

    def message(
        self,
        previous: Role | None,
        message: Message,
        *,
        system: str | None = None,
        tools: Sequence[Tool] = (),
    ) -> list[int]:
        """A whole message as it stands after one of role `previous` (None: right after the head;
        then `system` and `tools` are what the head was given: some templates write them into the
        first message). Raises BadRequest if the template has no place for such a message."""
        if previous is None:
            text = self._first(message, system, tools)
        else:
            text = self._after(previous, message)
        return self._tokenizer.encode_marked(self._cut(text, message.role), inside=True)

    def answer(self, previous: Role | None) -> list[int]:
        """The header that opens the assistant's turn."""
        return self._tokenizer.encode(self._after(previous or "user", None), inside=True)

    def ending(self, sampled: Sequence[int]) -> list[int]:
        """What is still missing after these sampled ids to close the assistant's message, before
        the next segment."""
        closing = self._tokenizer.encode(
            self._cut(self._tail("assistant"), "assistant"), inside=True
        )
        for length in range(min(len(closing), len(sampled)), 0, -1):
            if list(sampled[-length:]) == closing[:length]:
                return closing[length:]
        if not sampled or sampled[-1] not in self.stop_ids:
            return closing
        # Another stop id (end of text, end of a tool call) has taken the terminator's place.
        stops = [at for at, id in enumerate(closing) if id in self.stop_ids]
        return closing[stops[0] + 1 :] if stops else closing

    # --- extending ---

    def _views(self, history: Sequence[Message]) -> Iterator[tuple[int, int, Sequence[Message]]]:
        """Ever longer views of the history: (messages left out, system messages kept in front,
        what is seen)."""
        lead = 1 if history and history[0].role == "system" else 0
        users = [at for at, message in enumerate(history) if message.role == "user"]
        if self._windowed and users and users[-1] > lead:
            yield users[-1] - lead, lead, [*history[:lead], *history[users[-1] :]]
        yield 0, lead, history

    def _extend_view(
        self,
        past: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
        answer: bool,
        sampled: bool,
    ) -> Extension | None:
        """None: the template refuses the conversation."""
        whole = self._settled([*past, *new], tools, answer)
        if whole is None:
            return None
        if sampled:
            start = self._kept_sampled(past, tools, whole)
            logged = past[:-1]
        else:
            start, logged = None, past
        if start is not None:
            return self._segments([*past, *new], len(past), tools, whole, start)
        was = self._settled(logged, tools) or ""
        keep, start = next(
            (keep, len(before))
            for keep in range(len(logged), -1, -1)
            if (before := self._settled(past[:keep], tools)) is not None
            and was.startswith(before)
            and self._begins(before, whole)
        )
        return self._segments([*past, *new], keep, tools, whole, start)

    def _kept_sampled(
        self, past: Sequence[Message], tools: Sequence[Tool], whole: str
    ) -> int | None:
        """Where a last message that was sampled ends in `whole`, if that holds it, and all before
        it, unchanged: as it is rendered now, or as it was said, word for word."""
        before, answer = past[:-1], past[-1]
        if not whole.startswith(self._settled(before, tools) or ""):
            return None
        rendered = self._settled(past, tools)
        header = self._settled(before, tools, True)
        closing = self._cut(self._tail("assistant"), "assistant")
        literal = None if header is None else header + self._writer.mark(answer.content) + closing
        for text in (rendered, literal):
            if text is not None and self._begins(text, whole):
                return len(text)
        return None

    def _segments(
        self,
        messages: Sequence[Message],
        keep: int,
        tools: Sequence[Tool],
        whole: str,
        start: int,
    ) -> Extension:
        """The ids of whole[start:], parted where one message ends and the next begins."""
        segments: list[list[int]] = []
        for end in range(keep + 1, len(messages) + 1):
            upto = self._settled(messages[:end], tools)
            stop = len(upto) if upto is not None and self._begins(upto, whole) else start
            segments.append(self._tokenizer.encode_marked(whole[start:stop], inside=start > 0))
            start = max(start, stop)
        rest = self._tokenizer.encode_marked(whole[start:], inside=start > 0)
        return Extension(keep=keep, segments=segments, header=rest)

    def _begins(self, before: str, whole: str) -> bool:
        """Whether `before` begins `whole`, in text and in ids."""
        return whole.startswith(before) and self._tokenizer.parts_at(whole, len(before))

    def _settled(
        self, messages: Sequence[Message], tools: Sequence[Tool], answer: bool = False
    ) -> str | None:
        """The text of a conversation as far as it is certain whatever follows. None: refused."""
        if not messages:
            return self._after("user", None) if answer else ""
        text = self._writer.attempt(messages, tools, answer)
        return text if text is None or answer else self._cut(text, messages[-1].role)

    def _one_by_one(
        self,
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
        answer: bool,
    ) -> Extension:
        """For conversations the template refuses as a whole."""
        previous: Role | None = history[-1].role if history else None
        system: str | None = None
        segments: list[list[int]] = []
        for message in new:
            if previous is None and message.role == "system" and system is None:
                system = message.content
                segments.append(self.head(system, tools))
                continue
            head = self.head(None, tools) if previous is None and system is None else []
            segments.append(head + self.message(previous, message, system=system, tools=tools))
            previous = message.role
        header = self.answer(previous) if answer else []
        return Extension(keep=len(history), segments=segments, header=header)

    # --- seams ---

    def _find_short(self, role: Role) -> tuple[Message, ...] | None:
        for messages in _SHORT[role]:
            text = self._writer.attempt(messages)
            if text is not None and _WORDS[role] in text:
                return messages
        return None

    def _find_held(self, role: Role) -> int:
        """How many characters of a message's end are not certain until it is known what follows."""
        short = self._short[role]
        tails = [self._tail(role)]
        for following in _NEXT:
            if following.role in self._short and (
                text := self._writer.attempt([*short, following])
            ):
                tails.append(_behind(text, _WORDS[role]))
        tails.append(_behind(self._writer.write(short, add_generation_prompt=True), _WORDS[role]))
        return len(tails[0]) - len(_common(tails))

    def _find_opening(self) -> str:
        """How a user message opens, as far as it is the same in all places. "" if not known."""
        first = _before(self._writer.write(self._short["user"]), _WORDS["user"])
        alone = self._writer.attempt([_SYSTEM])
        both = _before(self._writer.attempt([_SYSTEM, _USER]) or "", _WORDS["user"])
        later = self._writer.attempt([_USER, _ASSISTANT, _USER]) or ""
        if alone and _SYSTEM.content in alone and both.startswith(alone):
            opening = both[len(alone) :]
        else:
            opening = _behind(_before(later, _WORDS["user"]), _WORDS["assistant"])
        opening = _common([opening[::-1], first[::-1]])[::-1]
        return opening if self._tokenizer.parts_at(first, len(first) - len(opening)) else ""

    def _find_windowed(self) -> bool:
        """Whether looking back to the last user message gives what looking at everything gives."""
        self._windowed = True
        for messages in _probe_conversations():
            for tools in ((), (_PROBE_TOOL,)):
                for at in range(1, len(messages)):
                    past, new = messages[:at], messages[at : at + 1]
                    whole = self._extend_view(past, new, tools, False, False)
                    if whole is not None and self.extend(past, new, tools) != whole:
                        return False
        return True

    def _find_append_stable(self) -> bool:
        return all(
            self.extend(
                messages[:at],
                messages[at : at + 1],
                tools,
                sampled=messages[at - 1].role == "assistant",
            ).keep
            == at
            for messages in _probe_conversations()
            for tools in ((), (_PROBE_TOOL,))
            for at in range(1, len(messages))
            if messages[at - 1] is not _SYSTEM and messages[at].role != "assistant"
        )

    def _tail(self, role: Role) -> str:
        """All that stands behind the content of a last message."""
        short = self._short.get(role)
        return _behind(self._writer.write(short), _WORDS[role]) if short else ""

    def _cut(self, text: str, role: Role) -> str:
        """`text`, which ends in a last message, without what is held back."""
        held = self._held.get(role, 0)
        return text[:-held] if held and text.endswith(self._tail(role)[-held:]) else text

    def _head(self, system: str | None, tools: Sequence[Tool]) -> str:
        messages = [Message(role="system", content=system)] if system is not None else []
        before = _before(self._writer.write([*messages, _USER], tools), _WORDS["user"])
        if self._opening and before.endswith(self._opening):
            return before.removesuffix(self._opening)
        return before[: self._tokenizer.last_border(before)]

    def _first(self, message: Message, system: str | None, tools: Sequence[Tool]) -> str:
        head = self._head(system, tools)
        messages = [Message(role="system", content=system)] if system is not None else []
        text = self._writer.attempt([*messages, message], tools)
        if text is not None and text.startswith(head):
            return text[len(head) :]
        return self._after("user" if message.role == "assistant" else "assistant", message)

    def _after(self, previous: Role, message: Message | None) -> str:
        """What `message` (None: the assistant's header) adds behind a message of role `previous`,
        together with what that one held back."""
        for role in (previous, *self._short):
            short = self._short.get(role)
            if short is None:
                continue
            text = (
                self._writer.attempt([*short, message])
                if message
                else self._writer.attempt(short, add_generation_prompt=True)
            )
            closing = self._cut(self._tail(short[-1].role), short[-1].role)
            if text is not None and (rest := _behind(text, short[-1].content)).startswith(closing):
                return rest[len(closing) :]
        raise BadRequest("the model's chat template has no place for this message", field="role")


class _Writer:
    """Messages to text by the template's program; what looks like a control token in what people
    write comes out marked."""

    def __init__(self, program: Program, tokenizer: Tokenizer, options: Mapping[str, Any]) -> None:
        self._program = program
        self._options = options
        self._folds_system = False
        self.mark = tokenizer.mark
        literals = program.literals
        tokenizer.set_control([text for text in tokenizer.added.values() if text in literals])
        self._folds_system = self.attempt([_SYSTEM, _USER]) is None
        """The template knows no system role: its text goes into the first user message."""

    def write(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = False,
    ) -> str:
        """Raises Refused."""
        return self._program.render(
            [self._plain(message) for message in self._folded(messages)],
            [cast(Tool, self._marked(tool)) for tool in tools],
            add_generation_prompt=add_generation_prompt,
            options=self._options,
        )

    def attempt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = False,
    ) -> str | None:
        """None: refused."""
        try:
            return self.write(messages, tools, add_generation_prompt)
        except Refused:
            return None

    def _folded(self, messages: Sequence[Message]) -> Sequence[Message]:
        if not (self._folds_system and messages and messages[0].role == "system"):
            return messages
        system, *rest = messages
        for at, message in enumerate(rest):
            if message.role == "user":
                content = f"{system.content}\n\n{message.content}"
                rest[at] = Message(role="user", content=content)
                break
        return rest

    def _plain(self, message: Message) -> dict[str, Any]:
        """The message as templates expect it."""
        plain: dict[str, Any] = {"role": message.role, "content": self.mark(message.content)}
        if message.tool_calls:
            plain["tool_calls"] = [self._plain_call(call) for call in message.tool_calls]
        if message.role == "tool" and message.tool_call_id:
            plain["tool_call_id"] = self.mark(message.tool_call_id)
        return plain

    def _plain_call(self, call: ToolCall) -> dict[str, Any]:
        function = {"name": self.mark(call.name), "arguments": self._marked(_arguments(call))}
        return {"type": "function", "id": self.mark(call.id), "function": function}

    def _marked(self, value: object) -> object:
        if isinstance(value, str):
            return self.mark(value)
        if isinstance(value, Mapping):
            pairs = cast(Mapping[str, object], value).items()
            return {self.mark(str(key)): self._marked(item) for key, item in pairs}
        if isinstance(value, (list, tuple)):
            return [self._marked(item) for item in cast(Sequence[object], value)]
        return value


def _arguments(call: ToolCall) -> object:
    """Templates expect an object; what is none stays text."""
    try:
        value: object = json.loads(call.arguments or "{}")
    except ValueError:
        return call.arguments
    return cast(object, value) if isinstance(value, dict) else call.arguments


def _common(texts: Sequence[str]) -> str:
    """The longest beginning that all `texts` share."""
    first, last = min(texts, default=""), max(texts, default="")
    same = (at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(same, min(len(first), len(last)))]


def _behind(text: str, word: str) -> str:
    """What stands behind `word`, at its first place: a later one is somebody's joke."""
    return text.partition(word)[2]


def _before(text: str, word: str) -> str:
    return text.rpartition(word)[0]
