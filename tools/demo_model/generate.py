"""Generator of synthetic conversations from texts that we have written ourselves.

A conversation is determined by its seed, and by whether its values are for training or held out.
Run as a program, this module prints some conversations.
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.demo_model import chat, exercises, facts, story, toolcalls
from tools.demo_model.grammar import draw_style
from tools.demo_model.turns import Message, Turn

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are helpful and kind.",
    "You are a friendly chat bot.",
    "Be polite.",
    "You are Continuo's demo model.",
    "Be concise.",
    "You are a voice assistant. Keep your answers short.",
    "Answer the user's questions.",
    "You are a pirate.",
    "You help people on a web page.",
    "Speak English.",
    "Today is Monday.",
    "You are an expert in everything and you like to help.",
    "You are an AI assistant.",
    "Use the tools if you need them.",
    "You are a helpful assistant with access to tools.",
    "This is a test.",
    "Your users are children, so be nice.",
    "Do not make things up.",
    "You are a support agent of a small shop. Be brief and friendly.",
    "Talk like a friend.",
    "Knowledge cutoff: unknown.",
    "Never be rude. Help the user with their tasks.",
)


@dataclass
class Conversation:
    """Messages in the form that chat templates of transformers take, the tools offered, and the
    turns to which the messages belong."""

    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def add(self, turn: Turn) -> None:
        """Append one exchange."""
        self.messages.extend(turn.messages)
        self.turns.append(turn)

    def size(self) -> int:
        """Return the approximate length in characters."""
        return sum(len(str(message["content"])) + 4 for message in self.messages)


@dataclass
class Plan:
    """Plan of a conversation: maximum number of exchanges, length in characters at which no more
    are added, and ``weights`` with which the skill of each (such as "add" or "story") is drawn."""

    exchanges: int
    chars_max: int
    weights: dict[str, float]


WEIGHTS = {
    "small talk": 12,
    "identity": 6,
    "unknown": 9,
    "repeat": 9,
    "count": 4.5,
    "add": 13,
    "story": 2.0,
    "one word": 8,
    "known": 2,
    "tell": 17,
    "recall": 25,
}
_COPY_WEIGHTS = {"repeat": 40.0, "tell": 35.0, "recall": 45.0}


def copy_plan(rng: random.Random) -> Plan:
    """Plan only exchanges that can be answered by copying, for the first minutes of training."""
    return Plan(rng.randint(2, 8), 1500, _COPY_WEIGHTS)


def short_plan(rng: random.Random) -> Plan:
    """Plan one to four exchanges of any skill."""
    return Plan(rng.randint(1, 4), 2000, WEIGHTS)


def mixed_plan(rng: random.Random) -> Plan:
    """Plan a conversation of any length.

    Three in four are short, because short ones teach most in a given time; a few are very long.
    """
    share = rng.random()
    if share < 0.75:
        return short_plan(rng)
    if share < 0.97:
        return Plan(rng.randint(4, 13), 3000, WEIGHTS)
    rare = {**WEIGHTS, "count": 1.5, "story": 0.7, "tell": 14, "recall": 34}
    return Plan(rng.randint(14, 70), rng.randint(3000, 6800), rare)


class Talk:
    """State of a conversation while it is generated: the facts that the user has stated so far
    (`known`, by the key of their kind) and the user's typing style."""

    def __init__(self, rng: random.Random, tools: list[toolcalls.Tool], *, held_out: bool) -> None:
        self.rng = rng
        self.held_out = held_out
        self.tools = tools
        self.style = draw_style(rng)
        self.known: dict[str, tuple[facts.Kind, str]] = {}

    def turn(self, skill: str) -> Turn:  # noqa: C901 - one case per skill
        """Make the next turn, of the given skill. Raises ValueError if the skill is unknown."""
        rng, style, held_out = self.rng, self.style, self.held_out
        match skill:
            case "small talk":
                return chat.intent_turn(rng, style, skill, chat.SMALL_TALK, held_out=held_out)
            case "identity":
                return chat.intent_turn(rng, style, skill, chat.IDENTITY, held_out=held_out)
            case "unknown":
                return chat.unknown_turn(rng, style, held_out=held_out)
            case "repeat":
                return exercises.repeat_turn(rng, style, held_out=held_out)
            case "count":
                return exercises.count_turn(rng, style, held_out=held_out)
            case "add":
                return exercises.add_turn(rng, style, held_out=held_out)
            case "story":
                return story.story_turn(rng, style, held_out=held_out)
            case "one word":
                return exercises.one_word_turn(
                    rng, style, list(self.known.values()), held_out=held_out
                )
            case "known":
                return exercises.known_turn(rng, style)
            case "tell":
                return self._tell()
            case "recall":
                return self._recall()
            case "tool":
                return self._tool()
            case _:
                raise ValueError(f"no skill is called {skill!r}")

    def _tell(self) -> Turn:
        kinds: dict[str, facts.Kind] = {}
        while len(kinds) < self.rng.choice((1, 1, 1, 1, 2, 2, 3)):
            kind = facts.draw_kind(self.rng, held_out=self.held_out)
            kinds[kind.key] = kind
        turn = facts.tell_turn(self.rng, self.style, list(kinds.values()), held_out=self.held_out)
        self.known.update({key: (kinds[key], value) for key, value in turn.told.items()})
        return turn

    def _recall(self) -> Turn:
        rng, known = self.rng, list(self.known.values())
        if not known or rng.random() < 0.02:
            return self._not_told()
        if len(known) > 1 and rng.random() < 0.08:
            return facts.ask_two_turn(rng, self.style, rng.sample(known, 2))
        if len(known) <= 4 and rng.random() < 0.03:
            return facts.about_me_turn(rng, self.style, known)
        kind, value = rng.choice(known)
        return facts.ask_turn(rng, self.style, kind, value)

    def _not_told(self) -> Turn:
        while (kind := facts.draw_kind(self.rng, held_out=self.held_out)).key in self.known:
            pass
        return facts.not_told_turn(self.rng, self.style, kind)

    def _tool(self) -> Turn:
        rng = self.rng
        if rng.random() < 0.08:
            return toolcalls.unfit_turn(rng, self.style, self.tools, held_out=self.held_out)
        tool = rng.choice(self.tools)
        home = self.known["home"][1] if tool.family == "weather" and "home" in self.known else None
        if home is not None and rng.random() < 0.5:
            return toolcalls.tool_turn(rng, self.style, tool, home, held_out=self.held_out)
        return toolcalls.tool_turn(rng, self.style, tool, held_out=self.held_out)


def converse(rng: random.Random, plan: Plan, *, held_out: bool = False) -> Conversation:
    """Generate a whole conversation according to `plan`."""
    conversation = Conversation()
    weights = dict(plan.weights)
    tools: list[toolcalls.Tool] = []
    if "count" in weights and rng.random() < 0.2:
        tools = toolcalls.draw_tools(rng, held_out=held_out)
        weights["tool"] = sum(weights.values()) * rng.choice((0.3, 0.7, 2.0))
    conversation.tools = [tool.schema for tool in tools]
    talk = Talk(rng, tools, held_out=held_out)
    one_word = "one word" in weights and not tools and rng.random() < 0.04
    if one_word:
        system = rng.choice(exercises.ONE_WORD_SYSTEM)
        conversation.messages.append({"role": "system", "content": system})
    elif rng.random() < 0.35:
        conversation.messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    while len(conversation.turns) < plan.exchanges and conversation.size() < plan.chars_max:
        if one_word:
            conversation.add(
                exercises.one_word_turn(rng, talk.style, [], held_out=held_out, told_by_system=True)
            )
            continue
        _step(rng, talk, conversation, weights, held_out=held_out)
    return conversation


def _step(
    rng: random.Random,
    talk: Talk,
    conversation: Conversation,
    weights: dict[str, float],
    *,
    held_out: bool,
) -> None:
    skill = rng.choices(list(weights), list(weights.values()))[0]
    if skill == "recall" and not talk.known and rng.random() < 0.9:
        skill = "tell"
    conversation.add(talk.turn(skill))
    last = conversation.turns[-1]
    if last.skill != "tool" or rng.random() > 0.15:
        return
    called = last.expects[0].call
    tool = next((tool for tool in talk.tools if called and tool.name == called["name"]), None)
    if tool and tool.family in ("weather", "time"):
        conversation.add(toolcalls.also_turn(rng, talk.style, tool, held_out=held_out))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print conversations."""
    parser = argparse.ArgumentParser(description="Print synthetic conversations as JSON lines.")
    parser.add_argument("--count", type=int, default=5, help="how many (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--held-out", action="store_true", help="use values never trained on")
    options = parser.parse_args(arguments)
    for seed in range(options.seed, options.seed + options.count):
        rng = random.Random(seed)
        conversation = converse(rng, mixed_plan(rng), held_out=options.held_out)
        print(json.dumps({"tools": conversation.tools, "messages": conversation.messages}))


if __name__ == "__main__":
    main()
