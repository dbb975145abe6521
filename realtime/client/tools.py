"""Tools: Python functions that the model can call.

    async def get_weather(city: str, days: Annotated[int, Meta(ge=1, le=7)] = 1) -> str:
        \"\"\"Forecast the weather of a city.\"\"\"

The annotations are the JSON schema of the arguments, as msgspec reads them, and the first paragraph
of the docstring is the description. Arguments are checked before the function is called.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from continuo.realtime.client.errors import ToolError
from continuo.realtime.client.events import JsonObject

ToolFunction = Callable[..., Any]
"""A function, or a coroutine function; a plain function runs in a thread."""


class Tool:
    """A function with its declaration for the model."""

    def __init__(
        self, function: ToolFunction, *, name: str | None = None, strict: bool = False
    ) -> None:
        """`strict`: the server enforces the schema while the arguments are generated.

        Raises TypeError if the parameters of the function cannot be described by a schema.
        """
        self.function = function
        self.name = name or function.__name__
        self.description = (inspect.getdoc(function) or "").partition("\n\n")[0]
        self._arguments = _define_arguments(self.name, function)
        self.declaration: JsonObject = {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": _describe(self._arguments),
            **({"strict": True} if strict else {}),
        }

    async def call(self, arguments: str) -> str:
        """Call the function with `arguments`, which is JSON text. Returns its result: a string
        unchanged, any other value as JSON. Raises ToolError if the arguments do not fit, and what
        the function raises."""
        try:
            decoded = msgspec.json.decode(arguments or "{}", type=self._arguments)
        except msgspec.DecodeError as error:
            raise ToolError(f"The arguments of {self.name} are not valid: {error}.") from None
        named = {field: getattr(decoded, field) for field in decoded.__struct_fields__}
        if inspect.iscoroutinefunction(self.function):
            result = await self.function(**named)
        else:
            result = await asyncio.to_thread(self.function, **named)
        return result if isinstance(result, str) else msgspec.json.encode(result).decode()


def make_tool(tool: Tool | ToolFunction) -> Tool:
    return tool if isinstance(tool, Tool) else Tool(tool)


def _define_arguments(name: str, function: ToolFunction) -> type[msgspec.Struct]:
    hints = get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"tool {name}: {parameter} cannot be given by name")
        if parameter.name not in hints:
            raise TypeError(f"tool {name}: parameter {parameter.name} has no annotation")
        default = () if parameter.default is parameter.empty else (parameter.default,)
        fields.append((parameter.name, hints[parameter.name], *default))
    return msgspec.defstruct(name, fields, kw_only=True)


def _describe(arguments: type[msgspec.Struct]) -> JsonObject:
    """Describe `arguments` as a JSON schema with an object at its root."""
    try:
        (root,), definitions = msgspec.json.schema_components(
            [arguments], ref_template="#/$defs/{name}"
        )
    except TypeError as error:
        raise TypeError(f"tool {arguments.__name__}: {error}") from None
    schema = definitions.pop(root["$ref"].removeprefix("#/$defs/"))
    schema.pop("title", None)
    return schema | ({"$defs": definitions} if definitions else {})
