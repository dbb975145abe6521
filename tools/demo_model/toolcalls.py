"""Turns in which the model calls a tool that the client offers and answers from its result."""

import json
import random
from dataclasses import dataclass
from typing import Any

from tools.demo_model import chat, values
from tools.demo_model.grammar import Style, opened, typed
from tools.demo_model.turns import Expect, Message, Turn, has_word

ToolSchema = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A tool as drawn for one conversation; ``argument`` is the name of the argument that the model
    must fill, None if there is none."""

    family: str
    name: str
    argument: str | None
    schema: ToolSchema


@dataclass(frozen=True)
class Family:
    """Tools of one purpose under many names.

    ``names``, ``about`` and ``asks`` are patterns of the tool's name, of its description and of
    questions that need the tool; ``arguments`` are the names that its argument may have;
    ``integer``: the argument is a number.
    """

    names: tuple[str, ...]
    arguments: tuple[str, ...]
    about: tuple[str, ...]
    asks: tuple[str, ...]
    integer: bool = False


_GET = "[get|fetch|find|check|look_up|lookup|query|read|show|retrieve|ask]"
FAMILIES = {
    "weather": Family(
        (
            f"{_GET}_[weather|current_weather|forecast|the_weather|temperature|weather_report]",
            "[weather|forecast|current_weather|weather_in|weather_now|weather_lookup|weather_api]",
        ),
        ("city", "location", "place", "town", "city_name", "where", "area"),
        (
            "Get the [current|] weather [in|for|of] a [city|place|town|location]",
            "Current weather",
            "Returns the [weather|temperature and conditions|forecast] for a [city|place]",
            "Weather [service|lookup|report]",
            "Look up the weather",
        ),
        (
            "[what is|what's|how is|how's|tell me|do you know|] the weather [like|] in {v} "
            "[today|now|"
            "right now|this morning|at the moment|]?",
            "[can you|could you|please|] [tell me|check|get|look up|find out] the weather "
            "[in|for] {v}",
            "[is it|will it be] [raining|rainy|sunny|cold|warm|hot|cloudy|windy|snowing|nice] "
            "in {v}"
            " [today|now|right now|tomorrow|]?",
            "how [warm|cold|hot] is it in {v} [today|now|]?",
            "what is the temperature in {v}?",
            "[do I|should I] [need|take|bring] [an umbrella|a coat|a jacket] in {v} [today|]?",
            "[is there|any] [rain|snow|sun|wind|fog] in {v} [today|]?",
            "[check|get|show] [the|] {v} weather",
            "weather report [for|of] {v}",
            "[the|] temperature in {v} [please|now|]",
            "what are the conditions in {v}?",
            "[find out|check|see] how [warm|cold|hot] it is in {v}",
            "I will be in {v} [tomorrow|today], do I need a [coat|jacket|hat]?",
            "weather in {v}?",
            "weather {v}",
            "{v} weather [please|today|]",
            "I am [in|going to|travelling to|flying to|visiting] {v}[,|.] [what is|how is|tell "
            "me] the weather [there|]?",
            "[what is|give me] the forecast for {v} [please|today|tomorrow|]?",
            "[does it|will it] [rain|snow] in {v} [today|tomorrow|now|]?",
            "[what's|how's] it like outside in {v}?",
            "I want to know the weather in {v}",
            "what will the weather be in {v} [tomorrow|]?",
        ),
    ),
    "time": Family(
        (
            f"{_GET}_[time|current_time|local_time|clock]",
            "[time_in|current_time|local_time|clock|world_clock]",
        ),
        ("city", "location", "place", "zone", "timezone"),
        (
            "Get the [current|local|] time in a [city|place]",
            "Tells the time somewhere",
            "World clock",
        ),
        (
            "what time is it in {v} [now|right now|]?",
            "[what is|what's|tell me] the [local|current|] time in {v}?",
            "[can you|please|] [tell me|check|get] the time in {v}",
            "time in {v}?",
            "how late is it in {v}?",
            "do you know what time it is in {v}?",
        ),
    ),
    "search": Family(
        (
            "[search|look_up|lookup|find|query]_[web|wiki|internet|docs|online|things]",
            "[search|lookup|web_search|wiki|find|google|search_wikipedia]",
        ),
        ("query", "q", "text", "topic", "term", "search", "keywords"),
        (
            "Search the [web|internet|encyclopedia|documents]",
            "Look [something|anything] up",
            "Finds pages about a topic",
        ),
        (
            "[please|can you|] search [the web|] for {v}",
            "[please|can you|could you|] look up {v}",
            "[search|google|find|lookup] {v} [please|for me|online|]",
            "do a search for {v}",
            "find [something|information|out] about {v}",
        ),
    ),
    "price": Family(
        (f"{_GET}_[price|stock_price|cost|quote]", "[price|price_of|stock_price|price_check]"),
        ("item", "product", "symbol", "name", "article"),
        (
            "Get the price of [a product|an item|a thing]",
            "Price lookup",
            "Returns what a product costs",
        ),
        (
            "[what is|what's|tell me|check|get] the price of {v}?",
            "how much [is|does|are] {v} [cost|]?",
            "what does {v} cost?",
            "price of {v}?",
        ),
    ),
    "phone": Family(
        (
            f"{_GET}_[contact|phone_number|phone|person|user|email]",
            "[contacts|phone_book|find_person|user_info]",
        ),
        ("name", "person", "who", "contact", "user"),
        ("Find the [phone number|address|contact] of a person", "Look a person up", "Phone book"),
        (
            "[what is|what's|find|get|look up|give me] the [phone number|number|contact] of {v}?",
            "[what is|find|get] {v}'s [phone number|number|contact]",
            "[how do I reach|how can I call|look up] {v}?",
        ),
    ),
    "light": Family(
        ("[turn_on|switch_on|set|control]_[light|lamp|lights]", "[lights|light_on|lamp_on]"),
        ("room", "where", "place", "area"),
        ("Turn on the light in a room", "Switches lights on", "Light control"),
        (
            "[please|can you|] [turn|switch] on the [light|lights|lamp] in the {v}",
            "lights on in the {v} [please|]",
            "[please|] [turn|switch] the {v} [light|lamp] on",
            "make it bright in the {v}",
        ),
    ),
    "timer": Family(
        ("[set|start|create]_[timer|alarm|countdown]", "[timer|alarm]"),
        ("minutes", "duration", "length", "time"),
        ("Set a timer [in minutes|for some minutes]", "Starts a timer"),
        (
            "[please|can you|] [set|start] a timer for {v} minutes",
            "[set|start] a {v} minute timer",
            "wake me [up|] in {v} minutes",
            "timer {v} minutes [please|]",
            "remind me in {v} minutes",
        ),
        integer=True,
    ),
    "today": Family(
        (f"{_GET}_[date|today|current_date|day]", "[today|date|calendar_day]"),
        (),
        ("Get today's date", "Tells which day it is", "Current date"),
        (
            "[what is|what's|tell me] [the date|today's date] [today|please|]?",
            "[what|which] day is [it|today]?",
            "what date is it [today|]?",
        ),
    ),
}

_CONDITIONS = values.listed("""
sunny, cloudy, rainy, windy, foggy, snowy, clear, stormy, partly cloudy, light rain, overcast,
heavy snow, thunderstorms, mostly sunny, drizzle, hail, mist, dry, humid, freezing
""")
_ROOMS = values.listed("""
kitchen, bedroom, bathroom, living room, garden, hall, office, cellar, garage, attic, dining
room, nursery, balcony, library, workshop, study
""")


def draw_tool(rng: random.Random, family_name: str, *, held_out: bool) -> Tool:
    """Draw a tool of a family, with names and a schema such as a client might write."""
    family = FAMILIES[family_name]
    name = _tool_name(rng, family, held_out=held_out)
    argument = rng.choice(family.arguments) if family.arguments else None
    kind = rng.choice(("integer", "number")) if family.integer else "string"
    properties: dict[str, Any] = {}
    if argument is not None:
        properties[argument] = {"type": kind}
        if rng.random() < 0.5:
            properties[argument]["description"] = _described(rng, argument)
    if family_name == "weather" and rng.random() < 0.2:
        properties["unit"] = {"type": "string", "enum": ["celsius", "fahrenheit"]}
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if argument is not None and rng.random() < 0.75:
        parameters["required"] = [argument]
    if rng.random() < 0.15:
        parameters["additionalProperties"] = False
    function: ToolSchema = {"name": name}
    if rng.random() < 0.85:
        about = typed(rng, Style(bare=True), rng.choice(family.about))
        function["description"] = about + rng.choice((".", ""))
    function["parameters"] = parameters
    flat = rng.random() < 0.3
    schema = (
        {"type": "function", **function} if flat else {"type": "function", "function": function}
    )
    return Tool(family_name, name, argument, schema)


def _tool_name(rng: random.Random, family: Family, *, held_out: bool) -> str:
    while True:
        name = chat.reply(rng, rng.choice(family.names))
        name = name[:1].lower() + name[1:]
        if rng.random() < 0.15:
            head, *rest = name.split("_")
            name = head + "".join(part.capitalize() for part in rest)
        if name == "get_weather" or values.is_held_out(name) == held_out:
            return name


def _described(rng: random.Random, argument: str) -> str:
    thing = argument.replace("_", " ")
    return rng.choice((f"The {thing}", f"Name of the {thing}", f"the {thing}", f"{thing}, as text"))


def draw_tools(rng: random.Random, *, held_out: bool) -> list[Tool]:
    """Draw one to three tools of different families, of which weather is the most frequent."""
    families = ["weather"] if rng.random() < 0.6 else []
    others = [name for name in FAMILIES if name != "weather"]
    count = rng.choice((0, 0, 1, 2)) if families else rng.choice((1, 1, 2))
    families += rng.sample(others, count)
    rng.shuffle(families)
    return [draw_tool(rng, family, held_out=held_out) for family in families]


def _value(rng: random.Random, family: str, *, held_out: bool) -> str:
    if family in ("weather", "time"):
        city = values.choose(rng, values.CITIES, held_out=held_out)
        return city if rng.random() < 0.5 else values.invent(rng, held_out=held_out).capitalize()
    if family == "phone":
        name = values.choose(rng, values.NAMES, held_out=held_out)
        return name if rng.random() < 0.4 else values.invent(rng, held_out=held_out).capitalize()
    if family == "light":
        return values.choose(rng, _ROOMS, held_out=held_out)
    if family == "timer":
        return values.number(rng, 1, 90, held_out=held_out)
    noun = values.choose(rng, values.NOUNS, held_out=held_out)
    odd = values.invent(rng, held_out=held_out)
    first = values.choose(rng, values.ADJECTIVES, held_out=held_out)
    return rng.choice((noun, odd, f"{first} {noun}", f"{odd} {noun}s", f"{noun}s"))


def tool_turn(
    rng: random.Random, style: Style, tool: Tool, home: str | None = None, *, held_out: bool
) -> Turn:
    """Make a turn of a question that needs the tool, the call, its result and the answer.

    With ``home``, the city that the user has named as home before, the question is about the
    weather there and does not name the city.
    """
    family = FAMILIES[tool.family]
    if home is not None:
        value = home
        user = typed(rng, style, rng.choice(_AT_HOME))
    else:
        value = style.value(_value(rng, tool.family, held_out=held_out))
        user = typed(rng, style, opened(rng, rng.choice(family.asks)), {"v": value})
    arguments: dict[str, Any] = {}
    if tool.argument is not None:
        arguments[tool.argument] = int(value) if family.integer else value
    return _called(rng, tool, user, arguments, value, held_out=held_out)


_AT_HOME = (
    "[what is|how is|what's] the weather [like|] where I live?",
    "what is the weather at my home?",
    "how is the weather in my [city|town]?",
    "is it raining where I live?",
)
_ALSO = ("and [in|what about|how about|for] {v}?", "[what|how] about {v}?", "and {v}?", "now {v}")


_TWO_PLACES = (
    "[what is|what's|how is|tell me] the {w} in {a} and [in|] {b}?",
    "the {w} in {a} and [in|] {b}[?|]",
    "{w} in {a} and {b}[?|]",
    "[check|get|show me] the {w} [in|for] {a} and {b}",
)
_TWO_THINGS = (
    "[look up|search for|find|check] {a} and {b}",
    "[search|look up|find] both {a} and {b}",
)
_TWO_PRICES = ("[what is|what's|check] the price of {a} and of {b}?", "how much are {a} and {b}?")


def two_calls_turn(rng: random.Random, style: Style, tool: Tool, *, held_out: bool) -> Turn:
    """Make a turn of a question that needs the tool twice, with both calls in one message."""
    wanted: list[str] = []
    while len(set(wanted)) < 2:
        wanted = [style.value(_value(rng, tool.family, held_out=held_out)) for _ in range(2)]
    asks = {"search": _TWO_THINGS, "price": _TWO_PRICES}.get(tool.family, _TWO_PLACES)
    slots = {"a": wanted[0], "b": wanted[1], "w": tool.family}
    user = typed(rng, style, opened(rng, rng.choice(asks)), slots)
    calls = [{"name": tool.name, "arguments": {tool.argument or "": value}} for value in wanted]
    returned = [_returned(rng, tool.family, value, held_out=held_out) for value in wanted]
    messages: tuple[Message, ...] = (
        {"role": "user", "content": user},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": call} for call in calls],
        },
        *({"role": "tool", "content": result} for result, _, _ in returned),
        {"role": "assistant", "content": " ".join(answer for _, answer, _ in returned)},
    )
    has = tuple(has_word(word) for _, _, words in returned for word in words)
    return Turn("tool", messages, (Expect(call=calls[0]), Expect(has=has)))


def also_turn(rng: random.Random, style: Style, tool: Tool, *, held_out: bool) -> Turn:
    """Make a turn of a short follow-up, such as "And in Paris?", that needs the same tool again."""
    value = style.value(_value(rng, tool.family, held_out=held_out))
    user = typed(rng, style, rng.choice(_ALSO), {"v": value})
    return _called(rng, tool, user, {tool.argument or "": value}, value, held_out=held_out)


def _called(
    rng: random.Random,
    tool: Tool,
    user: str,
    arguments: dict[str, Any],
    value: str,
    *,
    held_out: bool,
) -> Turn:
    result, answer, has = _returned(rng, tool.family, value, held_out=held_out)
    call = {"name": tool.name, "arguments": arguments}
    messages: tuple[Message, ...] = (
        {"role": "user", "content": user},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": call}],
        },
        {"role": "tool", "content": result},
        {"role": "assistant", "content": answer},
    )
    return Turn("tool", messages, (Expect(call=call), Expect(has=tuple(map(has_word, has)))))


def _returned(
    rng: random.Random, family: str, value: str, *, held_out: bool
) -> tuple[str, str, tuple[str, ...]]:
    """Draw the result of a tool call.

    Returns the result, the model's answer made from it, and the words that the answer must have.
    """
    share = rng.random()
    if share < 0.06:
        error = rng.choice(
            ("not found", "unknown place", "timeout", "no such thing", "service down")
        )
        return json.dumps({"error": error}), f"Sorry, that did not work: {error}.", (error,)
    if family == "weather" and share < 0.8:
        return _weather(rng, value, held_out=held_out)
    if family in ("light", "timer") and share < 0.6:
        done = rng.choice(('{"ok": true}', "ok", '{"status": "done"}', "done", '{"success": true}'))
        return done, "It is done.", ("done",)
    if family == "time" and share < 0.8:
        clock = f"{rng.randrange(24):02}:{rng.randrange(60):02}"
        key = rng.choice(("time", "local_time", "current_time", "now"))
        result = clock if rng.random() < 0.3 else json.dumps({key: clock})
        return result, f"It is {clock} in {value}.", (clock,)
    return _anything(rng, held_out=held_out)


def _weather(rng: random.Random, value: str, *, held_out: bool) -> tuple[str, str, tuple[str, ...]]:
    degrees = values.number(rng, -19, 42, held_out=held_out)
    sky = values.choose(rng, _CONDITIONS, held_out=held_out)
    form = rng.randrange(8)
    if form == 0:
        text = rng.choice(
            (f"{sky}, {degrees} degrees", f"{degrees} degrees, {sky}", f"{sky} {degrees}°C")
        )
        return text, f"The weather in {value}: {text}.", (degrees, sky)
    shown = degrees
    if form == 1:
        shown = degrees + rng.choice(("°C", " C", "°", "°F"))
    temperature = shown if form == 1 else int(degrees)
    if form == 2:
        shown = f"{degrees}.{rng.randint(1, 9)}"
        temperature = float(shown)
    warm = rng.choice(
        (
            "temperature",
            "temp",
            "temperature_c",
            "temp_c",
            "degrees",
            "celsius",
            "temperature_celsius",
        )
    )
    seen = rng.choice(
        (
            "condition",
            "conditions",
            "weather",
            "sky",
            "description",
            "summary",
            "forecast",
            "outlook",
        )
    )
    pairs: list[tuple[str, Any]] = [(warm, temperature), (seen, sky)]
    rng.shuffle(pairs)
    if rng.random() < 0.4:
        pairs.insert(0, (rng.choice(("city", "location", "place")), value))
    extra: list[tuple[str, Any]] = [
        ("humidity", rng.randint(20, 99)),
        ("wind", rng.randint(1, 60)),
        ("unit", "celsius"),
        ("wind_speed", rng.randint(1, 60)),
        ("feels_like", rng.randint(-9, 40)),
    ]
    pairs += rng.sample(extra, rng.choice((0, 0, 0, 1, 2)))
    warmth = shown if form == 1 else f"{shown} degrees"
    return (
        json.dumps(dict(pairs), ensure_ascii=False),
        f"It is {warmth} and {sky} in {value}.",
        (degrees, sky),
    )


def _anything(rng: random.Random, *, held_out: bool) -> tuple[str, str, tuple[str, ...]]:
    """Draw a tool's result of any form: text or key-value pairs, which the answer repeats.

    Returns the result, the model's answer made from it, and the words that the answer must have.
    """
    if rng.random() < 0.4:
        words = [
            values.invent(rng, held_out=held_out),
            values.choose(rng, values.NOUNS, held_out=held_out),
        ]
        words += [
            values.number(rng, 0, 999, held_out=held_out),
            values.choose(rng, values.ADJECTIVES, held_out=held_out),
        ]
        rng.shuffle(words)
        text = " ".join(words[: rng.randint(1, 4)])
        if rng.random() < 0.5:
            return text, f"Here is the result: {text}.", (text,)
        key = rng.choice(("result", "answer", "text", "content", "output"))
        return json.dumps({key: text}), f"Here is the result: {text}.", (text,)
    pairs: dict[str, Any] = {}
    for _ in range(rng.randint(1, 3)):
        key = (
            values.choose(rng, values.NOUNS, held_out=held_out)
            if rng.random() < 0.7
            else values.invent(rng, held_out=held_out)
        )
        number = values.number(rng, 0, 9999, held_out=held_out)
        pairs[key] = rng.choice(
            (
                int(number),
                values.invent(rng, held_out=held_out),
                values.choose(rng, values.NOUNS, held_out=held_out),
            )
        )
    said = ", ".join(f"{key} {item}" for key, item in pairs.items())
    return (
        json.dumps(pairs),
        f"Here is the result: {said}.",
        tuple(str(item) for item in pairs.values()),
    )


def unfit_turn(rng: random.Random, style: Style, tools: list[Tool], *, held_out: bool) -> Turn:
    """Make an exchange in which the user asks for a tool that is not offered, and the model answers
    that it does not know."""
    here = {tool.family for tool in tools}
    family = FAMILIES[rng.choice([name for name in FAMILIES if name not in here])]
    user = typed(
        rng,
        style,
        rng.choice(family.asks),
        {"v": style.value(_value(rng, "search", held_out=held_out))},
    )
    return chat.exchange("unknown", user, chat.DO_NOT_KNOW, Expect(has=("tiny demo model",)))
