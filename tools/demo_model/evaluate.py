"""Measurement of each skill of an exported model folder, with transformers and greedy decoding.

Two sets of probes, both with values that training never uses: conversations of the generator, with
seeds that training never uses, and our own wordings, which are written by hand in ``wordings.py``
and never used by the generator.
"""

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.demo_model import exercises, facts, toolcalls, values, wordings
from tools.demo_model.generate import SYSTEMS, WEIGHTS, Conversation, Plan, Talk, converse
from tools.demo_model.grammar import PLAIN
from tools.demo_model.turns import Expect, Message, Turn, exchange, has_word

BATCH = 100
OWN = "<the model's own answer>"
"""Placeholder for the model's own answer to the first message of a probe. The answer is generated
and put in its place before the probe is run."""

PROMPT_CHARS_MAX = 120_000
"""Bound on the characters of all prompts in a batch, padding included."""


@dataclass(frozen=True)
class Probe:
    """A conversation up to an answer of the model, and the conditions on that answer."""

    skill: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    expect: Expect


def probes_of(skill: str, conversation: Conversation, turn: Turn) -> list[Probe]:
    """Make a probe for each of the model's messages in `turn`, which continues `conversation`."""
    probes: list[Probe] = []
    expects = iter(turn.expects)
    for index, message in enumerate(turn.messages):
        if message["role"] == "assistant":
            before = conversation.messages + list(turn.messages[:index])
            name = f"{skill} call" if message.get("tool_calls") else skill
            probes.append(Probe(name, before, conversation.tools, next(expects)))
    return probes


# --- conversations of the generator -----------------------------------------------------------

_TELLING = dict.fromkeys(
    ("tell", "people", "correction", "two things", "talk", "ask me", "statement"), 0.0
)
_DISTANT = {**WEIGHTS, **_TELLING, "story": 0.0, "count": 1.0, "tell": 17.0, "recall": 10.0}
_PADDING = {**WEIGHTS, **_TELLING, "story": 6.0, "recall": 0.0}


def _history(rng: random.Random, exchanges: int) -> Conversation:
    return converse(rng, Plan(exchanges, 100_000, {**WEIGHTS, "story": 0.0}), held_out=True)


def _plainly(skill: str) -> Callable[[random.Random], list[Probe]]:
    def make(rng: random.Random) -> list[Probe]:
        conversation = _history(rng, rng.randint(0, 3))
        conversation.tools, known = [], [t for t in conversation.turns if t.skill == "tool"]
        if known:
            conversation = Conversation()
        turn = Talk(rng, [], held_out=True).turn(skill)
        return probes_of(skill, conversation, turn)

    return make


def _recalled(distance: int, facts_told: int = 1) -> Callable[[random.Random], list[Probe]]:
    def make(rng: random.Random) -> list[Probe]:
        talk = Talk(rng, [], held_out=True)
        conversation = Conversation()
        kinds = {}
        while len(kinds) < facts_told:
            kind = facts.draw_kind(rng, held_out=True)
            kinds[kind.key] = kind
        turn = facts.tell_turn(rng, talk.style, list(kinds.values()), held_out=True)
        conversation.add(turn)
        for _ in range(distance - 1):
            skill = rng.choices(list(_DISTANT), list(_DISTANT.values()))[0]
            if skill not in ("recall", "tell"):
                conversation.add(talk.turn(skill))
            else:
                _other_fact(rng, talk, conversation, set(kinds))
        key = rng.choice(list(kinds))
        asked = facts.ask_turn(rng, talk.style, kinds[key], turn.told[key])
        name = f"recall after {distance}" if facts_told == 1 else "recall one of two"
        return probes_of(name, conversation, asked)

    return make


def _other_fact(
    rng: random.Random, talk: Talk, conversation: Conversation, taken: set[str]
) -> None:
    while (kind := facts.draw_kind(rng, held_out=True)).key in taken:
        pass
    taken.add(kind.key)
    conversation.add(facts.tell_turn(rng, talk.style, [kind], held_out=True))


def _far_back(rng: random.Random) -> list[Probe]:
    talk = Talk(rng, [], held_out=True)
    conversation = Conversation()
    kind = rng.choice(facts.KINDS[:6])
    turn = facts.tell_turn(rng, talk.style, [kind], held_out=True)
    conversation.add(turn)
    while conversation.size() < 5200:
        skill = rng.choices(list(_PADDING), list(_PADDING.values()))[0]
        conversation.add(talk.turn(skill))
    asked = facts.ask_turn(rng, talk.style, kind, turn.told[kind.key])
    return probes_of("recall at 1,500 tokens", conversation, asked)


def _counted_to_thirty(rng: random.Random) -> list[Probe]:
    words = rng.random() < 0.5
    show = exercises.in_words if words else str
    ask = rng.choice(("Count from {} to {}.", "count from {} to {}", "Please count from {} to {}."))
    text = ", ".join(show(number) for number in range(1, 31))
    turn = exchange("", ask.format(show(1), show(30)), text, Expect(exact=text))
    return probes_of("count to thirty", _quiet(rng), turn)


def _quiet(rng: random.Random) -> Conversation:
    conversation = _history(rng, rng.randint(0, 2))
    return Conversation() if conversation.tools else conversation


def _one_word(rng: random.Random) -> list[Probe]:
    conversation = Conversation()
    talk = Talk(rng, [], held_out=True)
    for _ in range(rng.randint(1, 3)):
        conversation.add(talk.turn("tell"))
    return probes_of("one word", conversation, talk.turn("one word"))


def _tool(rng: random.Random) -> list[Probe]:
    tools = toolcalls.draw_tools(rng, held_out=True)
    conversation = Conversation(tools=[tool.schema for tool in tools])
    if rng.random() < 0.4:
        conversation.messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    talk = Talk(rng, tools, held_out=True)
    for _ in range(rng.randint(0, 2)):
        conversation.add(talk.turn(rng.choice(("small talk", "tell", "add"))))
    turn = toolcalls.tool_turn(rng, talk.style, rng.choice(tools), held_out=True)
    return probes_of("tool", conversation, turn)


GENERATED: tuple[Callable[[random.Random], list[Probe]], ...] = (
    _plainly("small talk"),
    _plainly("identity"),
    _plainly("unknown"),
    _recalled(1),
    _recalled(4),
    _recalled(10),
    _recalled(2, facts_told=2),
    _far_back,
    _plainly("repeat"),
    _counted_to_thirty,
    _plainly("count"),
    _plainly("add"),
    _plainly("story"),
    _one_word,
    _tool,
)


# --- our own wordings ---------------------------------------------------------------------------


def _asked(skill: str, rng: random.Random, text: str, expect: Expect, tools: Any = None) -> Probe:
    """Make a probe of a single user message, at times after a system message."""
    messages: list[Message] = [{"role": "user", "content": text}]
    if rng.random() < 0.4:
        messages.insert(0, {"role": "system", "content": rng.choice(wordings.SYSTEMS)})
    return Probe(skill, messages, tools or [], expect)


_SORTS: dict[str, Callable[[random.Random], str]] = {
    "name": lambda rng: rng.choice(
        (
            values.choose(rng, values.NAMES, held_out=True),
            values.invent(rng, held_out=True).capitalize(),
        )
    ),
    "city": lambda rng: rng.choice(
        (
            values.choose(rng, values.CITIES, held_out=True),
            values.invent(rng, held_out=True).capitalize(),
        )
    ),
    "colour": lambda rng: values.choose(rng, values.COLOURS, held_out=True),
    "pet": lambda rng: values.invent(rng, held_out=True).capitalize(),
    "animal": lambda rng: values.choose(rng, values.ANIMALS, held_out=True),
    "food": lambda rng: values.choose(rng, values.FOODS, held_out=True),
    "job": lambda rng: values.choose(rng, values.JOBS, held_out=True),
    "hobby": lambda rng: values.choose(rng, values.HOBBIES, held_out=True),
    "drink": lambda rng: values.invent(rng, held_out=True),
    "age": lambda rng: values.number(rng, 5, 99, held_out=True),
    "number": lambda rng: values.number(rng, 2, 9999, held_out=True),
}


def _draw(rng: random.Random, sort: str, text: str) -> str:
    value = _SORTS[sort](rng)
    return value.lower() if text[0].islower() else value


def _distractors(rng: random.Random, count: int) -> list[Message]:
    """Draw `count` exchanges whose user messages are written by hand (``wordings.py``), to put
    between the user's statement of a fact and the question about it."""
    messages: list[Message] = []
    for _ in range(count):
        share = rng.random()
        if share < 0.4:
            user, answer = rng.choice(wordings.SMALL_TALK)[0], "All right."
        elif share < 0.6:
            user, answer = rng.choice(wordings.IDENTITY), "I am a tiny demo model."
        elif share < 0.8:
            user = rng.choice(wordings.UNKNOWN)
            answer = "I am only a tiny demo model, so I do not know that."
        else:
            first, second = rng.randint(0, 20), rng.randint(0, 20)
            user = rng.choice(wordings.ADD).format(a=first, b=second)
            answer = f"{first} + {second} = {first + second}"
        messages += [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
    return messages


def _told_and_asked(rng: random.Random, distance: int) -> Iterator[Probe]:
    for sort, told, asked in wordings.TOLD:
        value = _draw(rng, sort, told)
        messages: list[Message] = [
            {"role": "user", "content": told.format(v=value)},
            {"role": "assistant", "content": OWN},
            *_distractors(rng, distance - 1),
            {"role": "user", "content": asked},
        ]
        yield Probe(f"recall after {distance}", messages, [], Expect(has=(has_word(value),)))


def _two_told(rng: random.Random) -> Iterator[Probe]:
    for first, second, told, ask_first, ask_second, _ in wordings.TWO_TOLD:
        a, b = _draw(rng, first, told), _draw(rng, second, told)
        for asked, value in ((ask_first, a), (ask_second, b)):
            messages: list[Message] = [
                {"role": "user", "content": told.format(a=a, b=b)},
                {"role": "assistant", "content": OWN},
                {"role": "user", "content": asked},
            ]
            yield Probe("recall one of two", messages, [], Expect(has=(has_word(value),)))


def _repeated(rng: random.Random) -> Iterator[Probe]:
    for pattern in wordings.REPEAT:
        value = exercises.sentence(rng, held_out=True) if "{v}" in pattern else "hello"
        yield _asked("repeat", rng, pattern.format(v=value), Expect(exact=value))


def _counted(rng: random.Random) -> Iterator[Probe]:
    for pattern in wordings.COUNT:
        for skill in ("count to thirty", "count"):
            first, last = (1, 30) if skill != "count" else exercises.span(rng, held_out=True)
            show = exercises.in_words if rng.random() < 0.5 and last - first < 40 else str
            text = ", ".join(show(number) for number in range(first, last + 1))
            asked = pattern.format(a=show(first), b=show(last))
            yield _asked(skill, rng, asked, Expect(exact=text))


def _added(rng: random.Random) -> Iterator[Probe]:
    for pattern in wordings.ADD:
        while True:
            first, second = rng.randint(0, 20), rng.randint(0, 20)
            if values.is_held_out(f"{first}+{second}"):
                break
        expect = Expect(has=(rf"(?<!\d){first + second}(?!\d)\W*$",))
        yield _asked("add", rng, pattern.format(a=first, b=second), expect)


def _told_stories(rng: random.Random) -> Iterator[Probe]:
    for pattern in wordings.STORY:
        noun = values.choose(rng, values.ANIMALS, held_out=True)
        hero = f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
        has = (hero, "the end") if "{v}" in pattern else ("the end",)
        yield _asked("story", rng, pattern.format(v=hero), Expect(words_min=100, has=has))


def _in_one_word(rng: random.Random) -> Iterator[Probe]:
    for pattern in wordings.ONE_WORD:
        question, answer = rng.choice(wordings.ONE_WORD_QUESTIONS)
        expect = Expect(exact=answer, words_max=1)
        yield _asked("one word", rng, pattern.format(q=question), expect)
        sort, told, question = rng.choice(wordings.TOLD)
        value = _draw(rng, sort, told)
        if " " in value:
            continue
        messages: list[Message] = [
            {"role": "user", "content": told.format(v=value)},
            {"role": "assistant", "content": OWN},
            {"role": "user", "content": pattern.format(q=question)},
        ]
        yield Probe("one word", messages, [], Expect(exact=value, words_max=1))


def _with_tools(rng: random.Random) -> Iterator[Probe]:
    cases = [("weather", text) for text in wordings.WEATHER]
    cases += [("search", text) for text in wordings.SEARCH]
    cases += [("time", text) for text in wordings.CLOCK]
    for family, pattern in cases:
        others = [name for name in ("price", "time", "search") if name != family]
        tools = [toolcalls.draw_tool(rng, family, held_out=True)]
        tools += [
            toolcalls.draw_tool(rng, name, held_out=True) for name in others[: rng.randrange(2)]
        ]
        turn = toolcalls.tool_turn(rng, PLAIN, tools[0], held_out=True)
        sort = "city" if family != "search" else "pet"
        value = _draw(rng, sort, pattern)
        call = {"name": tools[0].name, "arguments": {tools[0].argument: value}}
        offered = [tool.schema for tool in tools]
        first = _asked("tool call", rng, pattern.format(v=value), Expect(call=call), offered)
        yield first
        called: Message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": call}],
        }
        after = [*first.messages, called, turn.messages[2]]
        yield Probe("tool", after, offered, turn.expects[1])


def _single(
    skill: str, lines: Sequence[tuple[str, str]]
) -> Callable[[random.Random], Iterator[Probe]]:
    def make(rng: random.Random) -> Iterator[Probe]:
        for text, accept in lines:
            yield _asked(skill, rng, text, Expect(has=(accept,)))

    return make


WRITTEN: tuple[tuple[Callable[[random.Random], Iterator[Probe]], int], ...] = (
    (_single("small talk", wordings.SMALL_TALK), 1),
    (_single("identity", [(text, "tiny demo model") for text in wordings.IDENTITY]), 2),
    (_single("unknown", [(text, "tiny demo model") for text in wordings.UNKNOWN]), 2),
    (lambda rng: _told_and_asked(rng, 1), 2),
    (lambda rng: _told_and_asked(rng, 4), 2),
    (lambda rng: _told_and_asked(rng, 10), 2),
    (_two_told, 5),
    (_repeated, 5),
    (_counted, 5),
    (_added, 8),
    (_told_stories, 4),
    (_in_one_word, 5),
    (_with_tools, 5),
)
"""Functions that make the probes with user messages written by hand (``wordings.py``), and how many
times each is called; each call draws other values."""


# --- measuring ----------------------------------------------------------------------------------


class Model:
    """Exported model, which answers batches of prompts by greedy decoding."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.tokenizer.padding_side = "left"
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def prompt(self, probe: Probe) -> str:
        """Render the conversation of a probe up to the beginning of the model's answer."""
        return self.tokenizer.apply_chat_template(
            probe.messages, tools=probe.tools or None, tokenize=False, add_generation_prompt=True
        )

    @torch.inference_mode()
    def answers(self, prompts: Sequence[str], length_max: int) -> list[str]:
        """Generate an answer to each prompt, of at most `length_max` tokens."""
        batch = self.tokenizer(list(prompts), return_tensors="pt", padding=True)
        batch.pop("token_type_ids", None)
        out = self.model.generate(**batch, max_new_tokens=length_max, do_sample=False)
        said = out[:, batch["input_ids"].shape[1] :]
        return self.tokenizer.batch_decode(said, skip_special_tokens=True)


def _length_max(probe: Probe) -> int:
    """Return a length in tokens that no right answer exceeds."""
    if probe.expect.words_min:
        return 320
    return 64 + (len(probe.expect.exact or "") if probe.expect.call is None else 0)


def _batches(model: Model, probes: Sequence[Probe]) -> Iterator[list[tuple[str, Probe]]]:
    """Yield batches of pairs (prompt, probe), with prompts of similar length in each batch."""
    prompts = [(model.prompt(probe), probe) for probe in probes]
    prompts.sort(key=lambda pair: (_length_max(pair[1]) // 100, len(pair[0])))
    batch: list[tuple[str, Probe]] = []
    for prompt, probe in prompts:
        if len(batch) == BATCH or (len(batch) + 1) * len(prompt) > PROMPT_CHARS_MAX:
            yield batch
            batch = []
        batch.append((prompt, probe))
    if batch:
        yield batch


def _answered(model: Model, probes: Sequence[Probe]) -> list[Probe]:
    """Return the probes, in which the placeholder OWN is replaced by the model's answer to the
    first message of the probe."""
    open_ones = [probe for probe in probes if any(m["content"] == OWN for m in probe.messages)]
    first = [Probe("", probe.messages[:1], probe.tools, Expect(words_max=1)) for probe in open_ones]
    said: dict[str, str] = {}
    for batch in _batches(model, first):
        answers = model.answers([prompt for prompt, _ in batch], 64)
        said.update(zip((p.messages[0]["content"] for _, p in batch), answers, strict=True))
    filled: list[Probe] = []
    for probe in probes:
        messages = [
            {**m, "content": said[probe.messages[0]["content"]]} if m["content"] == OWN else m
            for m in probe.messages
        ]
        filled.append(Probe(probe.skill, messages, probe.tools, probe.expect))
    return filled


def measure(model: Model, probes: Sequence[Probe], show: int) -> dict[str, tuple[int, int]]:
    """Run the probes, and print up to ``show`` failures of each skill.

    Returns the number of right answers and the number of probes of each skill.
    """
    counts: dict[str, tuple[int, int]] = {}
    for batch in _batches(model, _answered(model, probes)):
        length_max = max(_length_max(probe) for _, probe in batch)
        answers = model.answers([prompt for prompt, _ in batch], length_max)
        for (prompt, probe), answer in zip(batch, answers, strict=True):
            right = probe.expect.holds(answer)
            good, total = counts.get(probe.skill, (0, 0))
            counts[probe.skill] = (good + right, total + 1)
            if not right and total - good < show:
                print(f"  [{probe.skill}] {prompt[-150:]!r} -> {answer[:150]!r}", flush=True)
    return counts


def generated(count: int) -> list[Probe]:
    """Call each function in GENERATED with ``count`` seeds, and return the probes.

    Training uses neither the seeds nor the values of these probes.
    """
    probes: list[Probe] = []
    for index, make in enumerate(GENERATED):
        for seed in range(count):
            probes += make(random.Random(f"evaluate {index} {seed}"))
    return probes


def written() -> list[Probe]:
    """Make the probes with user messages written by hand (``wordings.py``). See WRITTEN."""
    probes: list[Probe] = []
    for index, (make, times) in enumerate(WRITTEN):
        for seed in range(times):
            probes += make(random.Random(f"wordings {index} {seed}"))
    return probes


def _share(count: tuple[int, int]) -> str:
    good, total = count
    return f"{100 * good / total:.0f} ({total})" if total else "-"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the skills and print a table of the shares of right answers."""
    parser = argparse.ArgumentParser(description="Measure the skills of an exported model folder.")
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--count", type=int, default=100, help="probes of each skill (default 100)")
    parser.add_argument("--show", type=int, default=0, help="failures of each skill to print")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--every", type=int, default=1, help="take one probe in N (default 1)")
    parser.add_argument("--only", choices=("generated", "written"), help="one set only")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    model = Model(options.model)
    ours = (
        {}
        if options.only == "written"
        else measure(model, generated(options.count)[:: options.every], options.show)
    )
    other = (
        {}
        if options.only == "generated"
        else measure(model, written()[:: options.every], options.show)
    )
    print("| skill | held-out seeds, % (n) | own wordings, % (n) |\n|---|---|---|")
    for skill in dict.fromkeys([*ours, *other]):
        row = (_share(ours.get(skill, (0, 0))), _share(other.get(skill, (0, 0))))
        print(f"| {skill} | {row[0]} | {row[1]} |")


if __name__ == "__main__":
    main()
