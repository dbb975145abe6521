"""Chat templates as programs: compiled in a Jinja sandbox and rendered to text, not to tokens.

The environment matches the one transformers provides to templates (tests compare the two) without
the 0.5 s and 30 MB that importing transformers costs.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from continuo.engine.errors import BadRequest, ModelError, first_line
from continuo.engine.text.written_json import has_text, write_json

Render = Callable[..., str]


_RENDER_ERRORS = (
    *(jinja2.TemplateError, ArithmeticError, AttributeError, LookupError),
    *(RecursionError, TypeError, ValueError),
)
"""Exceptions of a failing template: those it raises on purpose, and those caused by its bugs."""


_CUTTING = frozenset(("partition", "replace", "rpartition", "rsplit", "split"))
_REWRITING = frozenset(
    (
        *("capitalize", "casefold", "format", "indent", "join", "lower", "reverse", "striptags"),
        *("swapcase", "title", "translate", "upper", "wordwrap"),
    )
)
"""Filters and methods that cut texts, and that rewrite them otherwise."""


SOURCE_CHARS_MAX = 256 * 1024
"""Maximum length of a chat template."""


def check_source_size(size: int) -> None:
    """Raise ModelError if a chat template is longer than SOURCE_CHARS_MAX."""
    if size > SOURCE_CHARS_MAX:
        raise ModelError(
            f"chat template: it has {size:,} characters; the limit is {SOURCE_CHARS_MAX:,}"
        )


class TemplateRefused(BadRequest):
    """The template rejects this conversation (two user messages in a row, for example)."""


class JinjaProgram:
    """A compiled chat template."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile `source`. `special_tokens` maps names such as bos_token to their text.

        Raises ModelError if `source` is not a valid template.
        """
        check_source_size(len(source))
        environment = _create_environment()
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"chat template: {error}") from None
        except (RecursionError, MemoryError, SyntaxError, ValueError) as error:
            # Python, which compiles it, limits nesting, and the digits of a number.
            raise ModelError(f"chat template: too complex ({first_line(error)})") from None
        texts = list(_iter_texts(tree))
        self.template_text = _join(text for text, _ in texts)
        """All text that the template itself can emit."""
        self.tested_text = _join(text for text, is_written in texts if not is_written)
        """The texts that the template may look for in messages: all but those it only writes."""
        attributes = (node.attr for node in tree.find_all(nodes.Getattr))
        self.names = frozenset((*attributes, *(text for text, _ in texts)))
        """The keys that the template may look up."""
        self.cuts, self.rewrites = _find_rewriting(tree)
        """The texts at which the template may cut a text, or that it may replace, and whether it
        may rewrite any text in another way."""
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        add_generation_prompt: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Render a conversation. Raises TemplateRefused, with the template's own message, if the
        template fails."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
                **(options or {}),
            )
        except _RENDER_ERRORS as error:
            raise TemplateRefused(f"the chat template refuses this conversation: {error}") from None


class _GenerationExtension(Extension):
    """The {% generation %} block, which marks training targets; its content is rendered as if it
    were outside the block."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _GuardedNamespace(Namespace):
    """Jinja's `namespace`, but names that begin with an underscore are refused, because templates
    are untrusted programs."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self = cast(Namespace, args[0])
        values = dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")


def _create_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationExtension, loopcontrols]
    )
    filters = cast(dict[str, Any], environment.filters)  # pyright: ignore[reportUnknownMemberType]
    filters["tojson"] = _tojson
    names = cast(dict[str, Any], environment.globals)  # pyright: ignore[reportUnknownMemberType]
    names["raise_exception"] = _raise_exception
    names["strftime_now"] = _strftime_now
    names["namespace"] = _GuardedNamespace
    return environment


# Templates are written for transformers, so the functions that they call have the parameters of the
# functions in transformers.


def _tojson(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - a template may pass flags by position
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - a template may pass flags by position
) -> str:
    # Jinja's own tojson escapes HTML.
    if indent is None and separators is None and not sort_keys and has_text(value):
        return write_json(value, ensure_ascii=ensure_ascii)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:  # noqa: A002 - a template may pass it by this name
    return datetime.now().strftime(format)


def _join(texts: Iterable[str]) -> str:
    return "\0".join(sorted(set(texts)))


def _find_rewriting(tree: nodes.Node) -> tuple[frozenset[str], bool]:
    cuts: set[str] = set()
    listed = {id(loop.iter) for loop in tree.find_all(nodes.For)}
    rewrites = any(
        isinstance(item.arg, nodes.Slice) and item.arg.step is not None and id(item) not in listed
        for item in tree.find_all(nodes.Getitem)
    )
    for node in tree.find_all((nodes.Filter, nodes.Call)):
        called = node.node if isinstance(node, nodes.Call) else None
        name = called.attr if isinstance(called, nodes.Getattr) else getattr(node, "name", "")
        given = [item.value for item in node.args if isinstance(item, nodes.Const)]
        if name in _CUTTING:
            cuts |= {text for text in given[:1] if isinstance(text, str) and text}
            rewrites = rewrites or bool(node.args and not isinstance(node.args[0], nodes.Const))
        elif name in _REWRITING or (name == "map" and _REWRITING & set(map(str, given))):
            rewrites = True
    return frozenset(cuts), rewrites


def _iter_texts(node: nodes.Node, *, is_written: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the texts below a node, and whether each is written at once: alone, or joined with
    others."""
    if isinstance(node, nodes.TemplateData):
        yield node.data, True
    elif isinstance(node, nodes.Const) and isinstance(node.value, str):
        yield node.value, is_written
    joins = isinstance(node, (nodes.Add, nodes.Concat)) and is_written
    for child in node.iter_child_nodes():
        yield from _iter_texts(child, is_written=joins or isinstance(node, nodes.Output))
