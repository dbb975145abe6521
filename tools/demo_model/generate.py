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

from tools.demo_model import (
    chat,
    exercises,
    facts,
    people,
    smalltalk,
    statements,
    story,
    sums,
    toolcalls,
    wishes,
)
from tools.demo_model.grammar import draw_style
from tools.demo_model.turns import Expect, Message, Turn, exchange

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
    "small talk": 9,
    "more small talk": 8,
    "identity": 4,
    "more identity": 4,
    "unknown": 9,
    "wish": 16,
    "greet": 0.4,
    "repeat": 12,
    "count": 14,
    "add": 22,
    "story": 4.5,
    "short story": 1.3,
    "joke": 1.5,
    "one word": 5,
    "known": 2.5,
    "tell": 11,
    "people": 8,
    "correction": 11,
    "recall": 30,
    "two things": 13,
    "ask me": 1.5,
    "statement": 6,
    "talk": 9,
}
_COPY_WEIGHTS = {"repeat": 40.0, "tell": 35.0, "recall": 45.0}
_FOLLOWED = 0.38
"""Share of the sums, counts, stories, jokes and recalled facts that a follow-up refers to."""


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
    rare = {**WEIGHTS, "count": 1.5, "story": 0.7, "short story": 0.3, "tell": 14, "recall": 34}
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
        self.latest = ""
        """The key of the fact that was stated or recalled last."""

    def turns(  # noqa: C901 - one case per skill
        self, skill: str, before: list[Message]
    ) -> list[Turn]:
        """Make the next turn, of the given skill, and the turns that refer to it.

        `before`: the conversation so far.
        """
        rng, style, held_out = self.rng, self.style, self.held_out
        more = rng.random() < _FOLLOWED
        match skill:
            case "add":
                return self._sums(more=more)
            case "count":
                turn, count = exercises.ask_count(rng, style, held_out=held_out)
                turns = [turn]
                if count and rng.random() < 0.1 and abs(count.last - count.first) > 3:
                    return exercises.interrupted_count(rng, style, turn, count)
                while count and more and rng.random() < 0.6 and len(turns) < 4:
                    turn, count = exercises.follow_count(rng, style, count)
                    turns.append(turn)
                    more = rng.random() < 0.3
                return turns
            case "story" | "short story":
                return self._stories(short=skill != "story", more=more)
            case "repeat":
                return self._repeats(more=more)
            case "people" if rng.random() < 0.04:
                return self._others()
            case "ask me":
                return self._asked()
            case "joke":
                return chat.joke_turns(rng, style, more=more)
            case "correction":
                return self._corrections()
            case "small talk" if rng.random() < 0.12:
                return chat.how_are_you_turns(rng, style)
            case "statement":
                return statements.statement_turns(rng, style)
            case "known" if rng.random() < 0.2:
                return exercises.capital_turns(rng, style)
            case "talk":
                turn = wishes.talk_turn(rng, style, before)
                return [turn] if turn else []
            case "recall":
                return self._recalls(more=more)
            case _:
                return [self.turn(skill)]

    def turn(self, skill: str) -> Turn:  # noqa: C901 - one case per skill
        """Make a turn of the given skill that refers to none before, but for facts.

        Raises ValueError if the skill is unknown.
        """
        rng, style, held_out = self.rng, self.style, self.held_out
        match skill:
            case "small talk":
                return chat.intent_turn(rng, style, skill, chat.SMALL_TALK, held_out=held_out)
            case "more small talk":
                more = smalltalk.MORE_SMALL_TALK
                return chat.intent_turn(rng, style, "small talk", more, held_out=held_out)
            case "identity":
                return chat.intent_turn(rng, style, skill, chat.IDENTITY, held_out=held_out)
            case "more identity":
                more = smalltalk.MORE_IDENTITY
                return chat.intent_turn(rng, style, "identity", more, held_out=held_out)
            case "unknown":
                return chat.unknown_turn(rng, style, held_out=held_out)
            case "wish":
                return wishes.wish_turn(rng, style)
            case "greet":
                return wishes.greet_turn(rng, style)
            case "repeat":
                return exercises.repeat_turn(rng, style, held_out=held_out)
            case "count":
                return exercises.count_turn(rng, style, held_out=held_out)
            case "add":
                return exercises.add_turn(rng, style, held_out=held_out)
            case "story":
                return story.story_turn(rng, style, held_out=held_out)
            case "short story":
                return story.ask_story(rng, style, held_out=held_out, short=True)[0]
            case "joke":
                return chat.joke_turns(rng, style, more=False)[0]
            case "one word":
                return exercises.one_word_turn(
                    rng, style, list(self.known.values()), held_out=held_out
                )
            case "known":
                return exercises.known_turn(rng, style)
            case "tell":
                return self._tell()
            case "people":
                return self._people()
            case "recall":
                return self._recall()
            case "two things":
                return self._two_things()
            case "tool":
                return self._tool()
            case _:
                raise ValueError(f"no skill is called {skill!r}")

    def _sums(self, *, more: bool) -> list[Turn]:
        turn, sum_ = sums.sum_turn(self.rng, self.style, held_out=self.held_out)
        turns = [turn]
        while sum_ and more and len(turns) < 5:
            turn, sum_ = sums.follow(self.rng, self.style, sum_)
            turns.append(turn)
            more = self.rng.random() < 0.4
        return turns

    def _stories(self, *, short: bool, more: bool) -> list[Turn]:
        rng, style = self.rng, self.style
        turn, told = story.ask_story(rng, style, held_out=self.held_out, short=short)
        turns = [turn]
        if told is None:
            return turns
        if not short and rng.random() < 0.4:
            return story.interrupted(rng, style, turn)
        if short and rng.random() < 0.2:
            return [turn, story.follow_short(rng, style, told)]
        while (more or rng.random() < 0.3) and len(turns) < 5:
            turn, told = story.follow(rng, style, told, held_out=self.held_out)
            turns.append(turn)
            more = rng.random() < 0.45
        return turns

    def _repeats(self, *, more: bool) -> list[Turn]:
        turns = [exercises.repeat_turn(self.rng, self.style, held_out=self.held_out)]
        while more and len(turns) < 3 and not self.held_out:
            turns.append(exercises.follow_repeat(self.rng, self.style, turns[-1]))
            more = self.rng.random() < 0.3
        return turns

    def _others(self) -> list[Turn]:
        turns, known = people.other_turns(self.rng, self.style)
        self.known.update(known)
        self.latest = list(known)[-1]
        return turns

    def _asked(self) -> list[Turn]:
        turns, known = facts.asked_turns(self.rng, self.style)
        self.known.update(known)
        self.latest = next(iter(known), self.latest)
        return turns

    def _people(self) -> Turn:
        turn, known = people.tell_turn(self.rng, self.style)
        self.known.update(known)
        self.latest = next(iter(known))
        return turn

    def _corrections(self) -> list[Turn]:
        """Have the user tell a fact and correct it, now or a few exchanges later."""
        rng = self.rng
        turns: list[Turn] = []
        before = dict(self.known)
        if self.latest not in self.known or rng.random() < 0.7:
            turns.append(self._tell() if rng.random() < 0.6 else self._people())
        fresh = [key for key, fact in self.known.items() if before.get(key) != fact]
        if self.latest not in self.known:
            return turns
        key = rng.choice(fresh or [self.latest])
        kind, old = self.known[key]
        if people.is_attribute(key) and rng.random() < 0.25:
            turn, known = people.subject_turn(rng, self.style, key, old)
            del self.known[key]
            self.known.update(known)
            self.latest = next(iter(known))
            turns.append(turn)
            if rng.random() < 0.5:
                turns.append(facts.ask_turn(rng, self.style, *known[self.latest]))
            return turns
        if rng.random() < 0.08:
            return [*turns, facts.taken_back_turn(rng, self.style, kind, old)]
        turn = facts.correct_turn(rng, self.style, kind, old, last=len(fresh) == 1)
        self.known[key] = (kind, turn.told[kind.key])
        if key.startswith("relation "):
            self.known = {k: f for k, f in self.known.items() if not k.startswith(f"{old} ")}
        self.latest = key
        turns.append(turn)
        if rng.random() < 0.5:
            asked = rng.choice([key, *(k for k in fresh if k in self.known)])
            turns.append(facts.ask_turn(rng, self.style, *self.known[asked]))
        return turns

    def _recalls(self, *, more: bool) -> list[Turn]:
        rng, style = self.rng, self.style
        if not self.known or rng.random() < 0.04:
            return [self._not_told()]
        if rng.random() < 0.13 and (turn := people.not_told_turn(rng, style, self.known)):
            return [turn]
        if rng.random() < 0.05 and (turn := people.who_does_turn(rng, style, self.known)):
            return [turn]
        share = rng.random()
        if share < 0.03 and (turn := people.who_is_turn(rng, style, self.known)):
            return [turn]
        kind, value = rng.choice(list(self.known.values()))
        if share < 0.07:
            return [facts.claim_turn(rng, style, kind, value)]
        if share < 0.25:
            return [self._recall()]
        self.latest = kind.key
        turns = [facts.ask_turn(rng, style, kind, value)]
        if more and rng.random() < 0.5:
            turns.append(facts.doubt_turn(rng, style, kind, value))
        elif more and len(self.known) > 1:
            other, its = rng.choice(list(self.known.values()))
            turn = facts.bare_turn(rng, style, other, its)
            turns += [turn] if turn else []
        return turns

    def _two_things(self) -> Turn:
        """Make a turn of two questions, wishes or facts in one message, answered one by one."""
        rng = self.rng
        skills = ["small talk", "small talk", "more small talk", "identity", "add", "add", "known"]
        skills += ["count", "joke", "tell", "tell", "people"] + (
            [] if self.tools else ["wish", "unknown"]
        )
        skills += ["recall"] * (6 if self.known else 0)
        parts: list[Turn] = []
        for skill in rng.sample(skills, 2):
            for _ in range(9):
                turn = self.turn(skill)
                if len(turn.messages[1]["content"]) < 160 and len(turn.messages[0]["content"]) < 90:
                    parts.append(turn)
                    break
        if len(parts) < 2:
            return self._tell()
        users = [str(part.messages[0]["content"]) for part in parts]
        joint = rng.choice((" and ", ". ", ", ", " ", " and also ", " then ", ". also ", "\n"))
        first = users[0].rstrip(".!") if joint[0] in ".," or "and" in joint else users[0]
        second = users[1]
        if not joint.startswith((".", "\n")) and second[:2] not in ("I ", "I'"):
            second = second[:1].lower() + second[1:]
        answers = [str(part.messages[1]["content"]) for part in parts]
        text = " ".join(a if a[-1] in ".!?" else a + "." for a in answers)
        told = {key: value for part in parts for key, value in part.told.items()}
        turn = exchange("two things", first + joint + second, text, Expect(has=()))
        return Turn(turn.skill, turn.messages, turn.expects, told)

    def _tell(self) -> Turn:
        kinds: dict[str, facts.Kind] = {}
        while len(kinds) < self.rng.choice((1, 1, 1, 1, 2, 2, 3)):
            kind = facts.draw_kind(self.rng, held_out=self.held_out)
            kinds[kind.key] = kind
        turn = facts.tell_turn(self.rng, self.style, list(kinds.values()), held_out=self.held_out)
        self.known.update({key: (kinds[key], value) for key, value in turn.told.items()})
        self.latest = next(iter(kinds))
        return turn

    def _recall(self) -> Turn:
        rng, known = self.rng, list(self.known.values())
        if not known or rng.random() < 0.02:
            return self._not_told()
        if len(known) > 1 and rng.random() < 0.25:
            return facts.ask_two_turn(rng, self.style, rng.sample(known, 2))
        if len(known) <= 4 and rng.random() < 0.2:
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
        if tool.family in ("weather", "time", "price", "search") and rng.random() < 0.08:
            return toolcalls.two_calls_turn(rng, self.style, tool, held_out=self.held_out)
        home = self.known["home"][1] if tool.family == "weather" and "home" in self.known else None
        if home is not None and rng.random() < 0.5:
            return toolcalls.tool_turn(rng, self.style, tool, home, held_out=self.held_out)
        return toolcalls.tool_turn(rng, self.style, tool, held_out=self.held_out)


def converse(rng: random.Random, plan: Plan, *, held_out: bool = False) -> Conversation:
    """Generate a whole conversation according to `plan`."""
    conversation = Conversation()
    weights = dict(plan.weights)
    tools: list[toolcalls.Tool] = []
    if "count" in weights and rng.random() < 0.24:
        tools = toolcalls.draw_tools(rng, held_out=held_out)
        weights["tool"] = sum(weights.values()) * rng.choice((0.3, 0.7, 2.0))
        weights["wish"] = 0.0
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
    told = conversation.turns and conversation.turns[-1].skill == "told"
    if told and rng.random() < 0.35 and "recall" in weights:
        skill = "recall"
    if skill == "recall" and not talk.known and rng.random() < 0.9:
        skill = "tell" if rng.random() < 0.6 else "people"
    for turn in talk.turns(skill, conversation.messages):
        conversation.add(turn)
    if not conversation.turns:
        return
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
