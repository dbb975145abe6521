"""The syntax of tool calls: one declaration for each chat template.

    an object     <tool_call>\\n{"name": "f", "arguments": {"a": 1}}\\n</tool_call>
                  └ marker   └ one JSON object: the name and the arguments         └ close_marker

    named         <tool_call> <function=f> <parameter=a> 1 </parameter> </function> </tool_call>
                  └ marker    └ begin   │└ name_end  └ arguments        └ end
                                        └ name

    bare          [f(a=1), g()]      f {"a": 1}      {"name": "f", "parameters": {"a": 1}}
                  └ the whole response, without a marker

`chat_template/tool_format_probe` derives the declaration from the template; `tool_parser` parses
calls by it, `tool_grammar` forces them, and `tool_writer` writes them where a template does not.
"""

import msgspec


class JsonArguments(msgspec.Struct, frozen=True):
    """Arguments written as one JSON object."""


class TaggedArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments written one by one between tags: strings as they are, other values as JSON."""

    key_open: str
    """Text before the name of an argument."""
    key_end: str
    """Text between the name of an argument and its value, if that is a string."""
    key_end_other: str
    """The same, for a value that is not a string. Equal to `key_end` in most formats; then the
    tool's schema says which values are strings."""
    value_close: str
    """Text after a value."""
    block_open: str = ""
    """Text before a string with markup or line breaks, in formats that write such a string as a
    block of its own, such as CDATA."""
    block_close: str = ""
    """Text after such a string."""


class LiteralArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments written as `key=value, key=value`, with values as literals, such as Python's."""

    assign: str
    """Text between the name of an argument and its value."""
    quote: str
    """Text before and after a string."""
    separator: str
    """Text between two arguments."""
    close: str
    """Text after the last argument."""


Arguments = JsonArguments | TaggedArguments | LiteralArguments


class NamedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls written as a name and then arguments."""

    arguments: Arguments = JsonArguments()
    begin: str = ""
    """Text between the marker and the name of the first call."""
    next_begin: str = ""
    """Text between two calls in one list, up to the name of the second. Empty: each call has its
    own marker."""
    id_mark: str = ""
    """Text between a name and the id of the call, in formats that write one after the name."""
    name_end: str = ""
    """Text between the name, or the id, and the arguments."""
    end: str = ""
    """Text after the arguments."""
    separator: str = ""
    """Text between two calls, each with a marker of its own."""


class ToolFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The syntax in which a model writes tool calls."""

    marker: str
    """Text that opens a call, or a list of calls; empty if all calls are bare."""
    close_marker: str = ""
    """Text that closes a call, or the list; empty if the format has none."""
    is_array: bool = False
    """Whether the marker is followed by a JSON array of calls."""
    allows_bare: bool = False
    """Whether a call may also be the whole response, without a marker."""
    name_key: str = "name"
    arguments_key: str = "arguments"
    named: NamedCalls | None = None
    """The syntax of a call that is not one JSON object."""
    is_harmony: bool = False
    """Whether calls are messages of a Harmony conversation. `output_channels` separates them by
    token ids, so that neither parser nor marker are needed."""

    @property
    def literals(self) -> tuple[str, ...]:
        """The texts that are written as they are. A detokenizer must not leave out the special
        tokens in them."""
        found = [self.marker, self.close_marker]
        if self.named is not None:
            for part in (self.named, self.named.arguments):
                fields = msgspec.structs.asdict(part).values()
                found += [text for text in fields if isinstance(text, str)]
        return tuple(text for text in found if text)


HERMES = ToolFormat(marker="<tool_call>", close_marker="</tool_call>")


LLAMA3 = ToolFormat(marker="<|python_tag|>", allows_bare=True, arguments_key="parameters")


MISTRAL = ToolFormat(marker="[TOOL_CALLS]", is_array=True)


MISTRAL_ARGS = ToolFormat(
    marker="[TOOL_CALLS]", named=NamedCalls(id_mark="[CALL_ID]", name_end="[ARGS]")
)


HARMONY = ToolFormat(marker="<|channel|>", is_harmony=True)


LFM2 = ToolFormat(
    marker="<|tool_call_start|>",
    close_marker="]<|tool_call_end|>",
    named=NamedCalls(
        begin="[",
        next_begin=", ",
        name_end="(",
        arguments=LiteralArguments(assign="=", quote='"', separator=", ", close=")"),
    ),
)


JSON_LIST = ToolFormat(marker="<|tool_call|>", is_array=True)


PHI4 = ToolFormat(marker="<|tool_call|>", close_marker="<|/tool_call|>", is_array=True)


GLM4 = ToolFormat(marker="", allows_bare=True, named=NamedCalls(name_end="\n", separator="\n"))


PYTHONIC = ToolFormat(
    marker="<|python_start|>",
    close_marker="]",
    allows_bare=True,
    named=NamedCalls(
        begin="[",
        next_begin=", ",
        name_end="(",
        arguments=LiteralArguments(assign="=", quote='"', separator=", ", close=")"),
    ),
)


PYTHONIC_INSTRUCTION = "[func_name1("
"""Text in the instructions of all templates that ask for pythonic calls. They render calls with
strings without quotes, or with values without types, so that the format cannot be derived."""


PYTHONIC_MARKERS = ("<|python_start|>", "<|python_tag|>")
"""Tokens that Llama 4 and Llama 3.2 may write before a pythonic call."""


UNRENDERED = {
    "请使用 Json 格式表示调用的参数": GLM4,
    "<|tool_call_start|>": LFM2,
    "<|/tool_call|>": PHI4,
    "<|tool_call|>": JSON_LIST,
    "<tool_call>": HERMES,
}
"""Formats of the models whose templates show the tools to the model, but leave the calls in earlier
messages to the client: by a text that is a token, or is in the instructions."""
