"""Turns in which the user asks the model to repeat, count, add or answer in one word."""

import random
from dataclasses import dataclass, replace

from tools.demo_model import chat, facts, sums, values
from tools.demo_model.grammar import Style, expand, opened, typed
from tools.demo_model.sums import in_words
from tools.demo_model.turns import Expect, Turn, cut_short, exchange, has_word

# --- repeat ---------------------------------------------------------------------------------

_OPEN = (
    "[please|can you|could you|now|ok now|] [repeat|say] after me{colon}",
    "the [next thing|only thing] you say is{colon}",
    "your answer [must be|is]{colon}",
    "[respond|answer] [only|me|] with{colon}",
    "[copy me|parrot|speak after me|follow me]{colon}",
    "[what I want you to say is|I want to hear]{colon}",
    "[go on,|try to|let me hear you] say{colon}",
    "[please|now|just|] [repeat|say|echo|write|type|copy|print] [this|the following|exactly|"
    "the next words|this sentence|this text|back to me|] {colon}",
    "[please|now|just|hey,||||] [say|repeat]",
    "[please|now|just|] [say|repeat] the [word|words]",
    "[I want you to|you should|you must|I would like you to] [say|repeat|write]{colon}",
    "[simply|just|only] [say|answer|reply|write|respond] [with|]{colon}",
    "repeat what I say{colon}",
    "echo{colon}",
    "say it{colon}",
    "repeat{colon}",
)
_CLOSED = (
    "[can|could|will|would] you [please|] [say|repeat|write] {text}?",
    "[please|can you|could you|now||||] [say|repeat|write|echo] {text} [for "
    "me|please|now|again|to me|]",
    "repeat the [word|words|sentence|phrase] {text}",
    "how about you say {text}",
)
_PHRASES = values.listed("""
hello, hi, good morning, good night, yes, no, thank you, goodbye, hello world, I am happy,
banana, abracadabra, the end, one two three, testing, well done, happy birthday, cheese, peace,
I love you, okay, wow, how are you, nice to meet you, see you soon, welcome, help, stop, ready,
red blue green, la la la
""")


_SENTENCES = (
    "I [like|love|want|hate] {{food}} and {{noun}}s",
    "today is a {{adjective}} day in {{city}}",
    "[my name is|hello, I am|this is] {{name}} [and I come from {{city}}|from {{city}}|]",
    "the quick brown fox jumps over the lazy dog",
    "[she sells sea shells|peter piper picked a peck of pickled pepper|how much wood would a "
    "woodchuck "
    "chuck|to be or not to be|the cat sat on the mat|all good things come to an end|ready, steady, "
    "go|"
    "hip hip hooray|hello my friend|I am a robot|I am a banana|you are great|good night and good "
    "luck|"
    "hello, world|testing, one, two|I will not tell a lie|the sky is green|I love cats|cats are "
    "better "
    "than dogs|knock knock|open sesame|who is there|let it snow|nobody is perfect|never give up]",
    "{{name}} has {{number}} {{noun}}s and a {{animal}}",
    "{{name}}, {{odd}} and {{animal}}s",
    "[we|they|you] [saw|found|lost|bought] a {{adjective}} {{noun}} [yesterday|today|in {{city}}]",
    "{{odd}}! {{odd2}}! {{noun}}!",
    "where is the {{noun}}",
    "{{number}} {{number}} {{odd}}",
)


_LONG = (
    "I [bought|saw|found|sold|lost] {{number}} {{noun}}s [for|with|from] my {relative} {{name}}",
    "{{name}} [hates|loves|likes] {{noun}}s but [loves|hates|misses] the {{adjective}} {{noun2}}",
    "the {{noun}} in {{city}} [is|was|looks] {{adjective}} and {{odd}}",
    "we [will meet|met|are meeting] at {{number}} [near|in|behind] the {{noun}}",
    "my {relative} [says|thinks|told me] that the {{animal}} [is|was] {{adjective}}",
    "please [bring|send|buy] {{number}} {{noun}}s and a {{adjective}} {{noun2}}",
    "{{odd}} {{odd2}} {{odd3}}",
    "yesterday the {{animal}} [ate|stole|hid] all my {{food}}",
    "in {{city}} they [eat|sell|cook] {{food}}",
    "[do not|never|always] [forget|lose|paint] the {{noun}} of {{name}}",
    "[she|he|nobody] [can|could|should] [see|hear|open] the {{adjective}} {{noun}}",
    "the [first|second|last] {{noun}} costs {{number}} [euros|dollars|coins]",
)
_LINKS = (
    ", and ",
    " and ",
    ", but ",
    " because ",
    ", so ",
    ". ",
    ", ",
    " when ",
    "; ",
    " while ",
    " that ",
)
_RELATIVES = values.listed("aunt, uncle, mother, boss, sister, friend, neighbour, dog, dentist")


def long_sentence(rng: random.Random) -> str:
    """Draw a text of two to five clauses, some of them without sense."""

    def clause() -> str:
        pattern = rng.choice(_LONG).replace("{relative}", rng.choice(_RELATIVES))
        return chat.fill(
            rng, expand(rng, pattern.replace("{{", "{").replace("}}", "}")), held_out=False
        )

    text = clause()
    for _ in range(rng.randint(1, 4)):
        text += rng.choice(_LINKS) + clause()
    return text


def _symbols(rng: random.Random) -> str:
    """Draw a text that is no sentence, such as an address or a long number."""
    word, other = (values.invent(rng, held_out=False) for _ in range(2))
    number = str(rng.randrange(10 ** rng.randint(1, 12)))
    return rng.choice(
        (
            number,
            number,
            f"{word}@{other}.com",
            f"www.{word}.org",
            f'{{"{word}": {number[:3]}}}',
            f"{word}_{other}",
            f"{word}-{other}-{number[:4]}",
            f"{word}{other}{values.invent(rng, held_out=False)}",
            f"{word.upper()} {number[:2]} {other}!",
            f"{word} + {other} = {number[:3]}",
            f"({word}) [{other}] #{number[:3]}",
            " ".join(number),
            ", ".join((word, other, number[:3])),
            f"{word}, {word}, {word}",
            f"{word} {word} {other}",
        )
    )


def sentence(rng: random.Random, *, held_out: bool) -> str:
    """Draw a text that the model is to repeat."""
    share = 1.0 if held_out else rng.random()
    if share < 0.22:
        return long_sentence(rng)
    return _symbols(rng) if share < 0.33 else short_sentence(rng, held_out=held_out)


def short_sentence(rng: random.Random, *, held_out: bool) -> str:
    """Draw a short text that the model is to repeat."""

    def one(pool: list[str]) -> str:
        return values.choose(rng, pool, held_out=held_out)

    def odd() -> str:
        return values.invent(rng, held_out=held_out)

    form = rng.randrange(9 if held_out else 12)
    if form == 0:
        return values.choose(rng, _PHRASES, held_out=held_out)
    if form >= 9:
        return chat.fill(rng, typed(rng, Style(bare=True), rng.choice(_SENTENCES)), held_out=False)
    if form == 1:
        return odd()
    if form == 2:
        return " ".join(odd() for _ in range(rng.randint(2, 5)))
    if form == 3:
        return " ".join(one(values.NOUNS) for _ in range(rng.randint(1, 6)))
    if form == 4:
        thing = f"{one(values.ADJECTIVES)} {one(values.NOUNS)}"
        return f"{odd().capitalize()} {one(values.VERBS)} the {thing}"
    if form == 5:
        return (
            f"the {one(values.ADJECTIVES)} {one(values.ANIMALS)} {one(values.VERBS)} "
            f"{rng.choice(('a', 'the', 'my', 'every'))} {one(values.NOUNS)}"
        )
    if form == 6:
        return f"my {one(values.NOUNS)} is {one(values.ADJECTIVES)} and {one(values.ADJECTIVES)}"
    if form == 7:
        return f"{one(values.NAMES)} and {odd().capitalize()} went to {one(values.CITIES)}"
    return f"{odd()} {values.number(rng, 0, 999, held_out=held_out)} {one(values.NOUNS)}"


_NOTHING_TO_REPEAT = (
    "[can you|could you|please|] [repeat after me|repeat what I say|say what I say|copy me|echo me|"
    "parrot me][?|]",
)


_EVERYTHING = (
    "[please|from now on|now|] [repeat|say|copy|echo] [everything|all|whatever|every word] [that|] "
    "I [say|write|type]",
    "[from now on|] [copy|echo|parrot] me",
    "[answer|reply] [only|always|just] with what I [say|write]",
    "[always|only] say {text} [from now on|whatever I ask|to everything]",
)
ONE_BY_ONE = "I can only repeat what is in the same message. Write: say, and then the words."
_TIMES = (
    "[please|can you|] [say|repeat|write|type|echo] [the word|] {text} {times} [please|]",
    "{times} {text} [please|]",
    "[say|repeat|write] {times}: {text}",
    "[say|write] [the following|this|the following sentence|this sentence] {times}: {text}",
    "[I want you to|you should] [say|write] {text} {times}",
)
TOO_OFTEN = "I can say it twice or three times, but not more often. I am only a tiny demo model."


def _times_turn(rng: random.Random, style: Style) -> Turn:
    """Make an exchange in which the model is to say a text several times."""
    text = style.value(rng.choice((rng.choice(_PHRASES), values.invent(rng, held_out=False))))
    if rng.random() < 0.3:
        text = style.value(short_sentence(rng, held_out=False))
    count = rng.choice((2, 2, 2, 3, 3, 3, 4, 5, 6, 10, rng.randint(4, 100)))
    times = {2: ("twice", "two times", "2 times"), 3: ("three times", "3 times", "3x")}.get(
        count, (f"{count} times", f"{count} times", f"{count}x")
    )
    shown = rng.choice(("{}", "{}", "'{}'", '"{}"')).format(text)
    slots = {"text": shown, "times": rng.choice(times)}
    user = typed(rng, style, opened(rng, rng.choice(_TIMES)), slots)
    answer = TOO_OFTEN if count > 3 else " ".join([text] * count)
    return exchange("repeat", user, answer, Expect(exact=answer))


_SAY_NOW = (
    "[and|now|ok now|and now|then] [say|] {text} [please|]",
    "[no,|no|sorry,|] [I meant|I said|say|you should say] {text}",
    "[now|and|and now] [repeat|write|say]: {text}",
)


def follow_repeat(rng: random.Random, style: Style, turn: Turn) -> Turn:
    """Make an exchange that follows on a text just repeated."""
    said = str(turn.messages[1]["content"])
    if rng.random() < 0.3:
        user = typed(rng, style, rng.choice(_AGAIN))
        return exchange("repeat follow-up", user, said, Expect(exact=said))
    text = style.value(sentence(rng, held_out=False))
    user = typed(rng, style, rng.choice(_SAY_NOW), {"text": text})
    user = user if user.endswith(text) else user.removesuffix(".").removesuffix("!")
    return exchange("repeat follow-up", user, text, Expect(exact=text))


def repeat_turn(rng: random.Random, style: Style, *, held_out: bool) -> Turn:
    """Make an exchange in which the model repeats a text exactly, without its quotation marks."""
    share = 1.0 if held_out else rng.random()
    if share < 0.03:
        user = typed(rng, style, rng.choice(_NOTHING_TO_REPEAT))
        return exchange("repeat", user, "Of course. What should I say?", Expect(has=("say",)))
    if share < 0.06:
        text = style.value(rng.choice(_PHRASES))
        user = typed(rng, style, opened(rng, rng.choice(_EVERYTHING)), {"text": text})
        return exchange("repeat", user, ONE_BY_ONE, Expect(exact=ONE_BY_ONE))
    if share < 0.14:
        return _times_turn(rng, style)
    text = style.value(sentence(rng, held_out=held_out))
    if not style.lower and rng.random() < 0.4:
        text = text[:1].upper() + text[1:]
    quoted = rng.random() < 0.25
    if quoted or rng.random() < 0.4:
        quote = rng.choice(('"{}"', '"{}"', "'{}'", "“{}”"))
        slot = quote.format(text) if quoted else text
        user = typed(rng, style, opened(rng, rng.choice(_CLOSED)), {"text": slot})
        if not quoted:
            user = user.rstrip(".!") if user.rstrip(".!").endswith(text) else user
    else:
        slot = text = text + rng.choice(("", "", "", ".", "!", "?"))
        head = typed(
            rng, style, opened(rng, rng.choice(_OPEN)), {"colon": rng.choice((":", ":", "", ","))}
        )
        user = f"{head.rstrip('.!')} {slot}"
    return exchange("repeat", user, text, Expect(exact=text))


# --- count ----------------------------------------------------------------------------------

_COUNT = (
    "[please|can you|could you||||] count from {a} to {b} [for me|please|]",
    "[recite|enumerate|write out|go through] [the numbers|] [from|] {a} to {b}",
    "[count|numbers] from {a} through {b} [please|]",
    "[give me|say] every number from {a} to {b}",
    "[please|can you|could you||||] count [up|] [from {a}|from {a} up] [to|until|till|up to] {b}",
    "count [with me|slowly|out loud|aloud|], [start at|starting at|beginning with] {a} and "
    "[stop|end] at {b}",
    "[list|give me|say|tell me|write|name|show me] [all|] the numbers from {a} to {b}",
    "[list|say|write] the numbers between {a} and {b}",
    "{a} to {b}, count",
    "count {a} to {b}",
    "I want you to count from {a} to {b}",
    "start counting at {a} and go [on|] to {b}",
    "now count from {a} to {b}",
    "numbers from {a} to {b} please",
)
_COUNT_TO = (
    "[please|can you|could you||||] count [up|] [to|till|until] {b} [for me|please|]",
    "[can you|please|] count to {b} [in order|slowly|out loud|]",
    "count me to {b}",
    "[list|say|write] the [first {b} numbers|numbers up to {b}]",
    "go to {b}, counting",
    "I want to hear you count to {b}",
)
_COUNT_DOWN = (
    "[please|can you||] count [down|backwards|back] from {a} to {b}",
    "[please|can you||] count from {a} [down|back] to {b}",
    "countdown from {a} to {b}",
    "count in reverse from {a} to {b}",
)
_COUNT_DOWN_ONE = ("[please|] count [down|backwards] from {a}", "[do a|] countdown from {a}")


def span(rng: random.Random, *, held_out: bool) -> tuple[int, int]:
    """Draw the numbers from which and to which the model is to count, at most 100."""
    while True:
        first = 1 if rng.random() < 0.5 else rng.randint(0, 80)
        longest = 30 if rng.random() < 0.9 else 100
        last = min(100, first + rng.randint(2, longest))
        if (first, last) == (1, 30) or values.is_held_out(f"{first}-{last}") == held_out:
            return first, last


@dataclass(frozen=True)
class Count:
    """Numbers from ``first`` to ``last`` in steps of ``step``, in words or in digits."""

    first: int
    last: int
    step: int
    words: bool

    @property
    def text(self) -> str:
        """The numbers, as the model says them."""
        show = in_words if self.words else str
        towards = 1 if self.step > 0 else -1
        return ", ".join(show(n) for n in range(self.first, self.last + towards, self.step))


_BY = (
    "count [by|in] {step} [from {a}|] [to|up to] {b} [please|]",
    "count from {a} to {b} [by|in] {step}",
    "[please|can you|] count to {b} [by|in] {step}",
)
_PARITY = (
    "[list|say|give me|write|what are|tell me] the {parity} numbers [from {a}|] [to|up to] {b}",
    "[count|] [the|only the|only] {parity} numbers [from {a}|] to {b}",
)
_TOO_FAR = (
    "[please|can you|could you||] count [from 1|] [up|] to {b} [please|]",
    "[please|can you||] count from {a} to {b}",
    "[list|say|write] [all|] the numbers [up to|from 1 to] {b}",
    "count to [a thousand|a million|infinity|one billion|ten thousand|a googol|minus {a}|-{a}]",
    "count [sheep|the stars|for ever|forever|my {noun}s|everything]",
    "how high can you count?",
)
_OTHERWISE = (
    "[please|can you|] count to {b} [but|and] [skip|leave out|without|not] {a}",
    "[please|can you|] count [to {b}|] in [french|german|spanish|italian|latin|roman "
    "numerals|binary|hexadecimal|morse code|japanese|another language]",
    "[please|can you|] count [from a to z|the alphabet|letters|in letters]",
    "count [the letters|the words|the vowels|how many letters] [in|of] [{noun}|this|hello|my "
    "name|that|the story]",
    "count [the|all|only the|] [prime numbers|primes|square numbers|squares|fractions|fibonacci "
    "numbers|multiples of {c}] [to {b}|]",
    "count [to|down to|until] [minus {c}|-{c}|below zero|negative {c}]",
    "count [from|up from] [minus {c}|-{c}] to {b}",
    "count [to {b}|] [in|by] [halves|tenths|sevens|elevens|0.5|thirteens|random steps]",
    "count to {b} [and back|and back again|there and back|twice|three times|ten times|and repeat "
    "every number]",
    "count [to {b}|] in [random|alphabetical|a random] order",
    "[count|say] the numbers [to {b}|from {a} to {b}] [in a mixed order|shuffled|at random]",
    "count [the words|the sentences|your words|my messages|how often I said {noun}]",
)
OTHERWISE = (
    "I cannot count like that, because I am only a tiny demo model. I can count up or down, to a "
    "hundred at most."
)
TOO_FAR = "I can only count to a hundred, because I am only a tiny demo model."


def count_turn(rng: random.Random, style: Style, *, held_out: bool) -> Turn:
    """Make an exchange in which the model counts, up or down, between two numbers."""
    return ask_count(rng, style, held_out=held_out)[0]


def ask_count(rng: random.Random, style: Style, *, held_out: bool) -> tuple[Turn, Count | None]:
    """Make an exchange in which the model counts, and return what it counted.

    The model answers in words if the numbers are in words, unless the user asks for the other form.
    """
    share = 1.0 if held_out else rng.random()
    if share < 0.08:
        slots = {
            "a": str(rng.randint(1, 99)),
            "b": str(rng.choice((1000, 10000, 500, 200, 101, 150, rng.randint(101, 99999)))),
            "noun": values.choose(rng, values.NOUNS, held_out=False),
        }
        user = typed(rng, style, opened(rng, rng.choice(_TOO_FAR)), slots)
        return exchange("count too far", user, TOO_FAR, Expect(has=("tiny demo model",))), None
    if share < 0.12:
        slots = {
            "a": str(rng.randint(2, 9)),
            "b": str(rng.choice((10, 20, rng.randint(5, 100)))),
            "c": str(rng.randint(2, 20)),
            "noun": values.choose(rng, values.NOUNS, held_out=False),
        }
        user = typed(rng, style, opened(rng, rng.choice(_OTHERWISE)), slots)
        return exchange("count too far", user, OTHERWISE, Expect(has=("tiny demo model",))), None
    if share < 0.15:
        return _neighbour_turn(rng, style), None
    if share < 0.22:
        return _in_steps(rng, style)
    if rng.random() < 0.35 and not held_out:
        first, last = 1, rng.choice((3, 5, 10, 10, 12, 15, 20, 20, 30, 30, 30, 30, 50, 100))
    elif rng.random() < 0.6 and not held_out:
        first = rng.choice((1, rng.randint(0, 20)))
        last = first + rng.randint(2, 15)
    else:
        first, last = span(rng, held_out=held_out)
    words = rng.random() < 0.5 and last - first <= 40
    step = 1
    if first == 1 and rng.random() < 0.4:
        pattern = rng.choice(_COUNT_TO)
    elif rng.random() < 0.3:
        if first == 1 and rng.random() < 0.3:
            first = 0
        first, last, step = last, first, -1
        pattern = rng.choice(_COUNT_DOWN_ONE if last == 1 else _COUNT_DOWN)
        if last != 1 and rng.random() < 0.4:
            pattern = rng.choice(_COUNT)
    else:
        pattern = rng.choice(_COUNT)
    show = in_words if words else str
    slots = {"a": show(first), "b": show(last)}
    tail = ""
    if rng.random() < 0.08:
        words = not words
        tail = " in words" if words else rng.choice((" in digits", " in figures", " with digits"))
    count = Count(first, last, step, words)
    user = typed(rng, style, opened(rng, pattern + tail), slots)
    return exchange("count", user, count.text + ".", Expect(exact=count.text)), count


_AFTER = (
    "[what|which number|what number|which] [comes|is|follows] after {a}?",
    "[what is|what's] the [next number|number] after {a}?",
    "{x}, {y}, {a}, [what comes next|what is next|and then|next][?|]",
    "{x}, {y}, {a}...",
)
_BEFORE = (
    "[what|which number|what number|which] [comes|is] before {a}?",
    "[what is|what's] the number before {a}?",
)


def _neighbour_turn(rng: random.Random, style: Style) -> Turn:
    """Make an exchange about the number before or after another one."""
    number = rng.randint(2, 99)
    show = in_words if rng.random() < 0.3 else str
    after = rng.random() < 0.6
    slots = {"a": show(number), "x": show(number - 2), "y": show(number - 1)}
    user = typed(rng, style, opened(rng, rng.choice(_AFTER if after else _BEFORE)), slots)
    other = show(number + (1 if after else -1))
    answer = f"{'After' if after else 'Before'} {show(number)} comes {other}."
    return exchange("count", user, answer, Expect(has=(has_word(other),)))


_LAST = (
    "[what|which] [was|is] the [last|largest|highest|final] [number|one]?",
    "[where|at which number|at what number] did you [stop|end]?",
)
_FIRST = (
    "[what|which] [was|is] the [first|smallest] [number|one]?",
    "[where|at which number] did you [start|begin]?",
)


def interrupted_count(rng: random.Random, style: Style, turn: Turn, count: Count) -> list[Turn]:
    """Have the user interrupt a count, and the model go on from what the user heard."""
    numbers = count.text.split(", ")
    at = rng.randint(1, len(numbers) - 1)
    user = typed(rng, style, rng.choice(_FURTHER))
    rest = ", ".join(numbers[at:])
    heard = ", ".join(numbers[:at]) + rng.choice((",", ""))
    return [
        cut_short(turn, heard),
        exchange("count follow-up", user, rest + ".", Expect(exact=rest)),
    ]


def _in_steps(rng: random.Random, style: Style) -> tuple[Turn, Count]:
    if rng.random() < 0.4:
        parity = rng.choice(("even", "odd"))
        first = 2 if parity == "even" else 1
        step, last = 2, first + 2 * rng.randint(2, 14)
        asked = last + (rng.random() < 0.4)
        pattern, slots = rng.choice(_PARITY), {"parity": parity}
    else:
        step = rng.choice((2, 2, 2, 3, 4, 5, 5, 10, 10))
        first, last = step, step * rng.randint(3, 10)
        asked = last
        name = {2: "twos", 3: "threes", 4: "fours", 5: "fives", 10: "tens"}[step]
        pattern, slots = rng.choice(_BY), {"step": rng.choice((name, str(step), name))}
    count = Count(first, last, step, words=False)
    user = typed(rng, style, opened(rng, pattern), {**slots, "a": str(first), "b": str(asked)})
    return exchange("count", user, count.text + ".", Expect(exact=count.text)), count


_BACKWARDS = (
    "[and|now|ok now|ok and|] [backwards|in reverse|back|the other way round|down|reverse] "
    "[please|]",
    "[now|and now|can you] [count|do it|say it|go] [backwards|back|in reverse|down]",
    "[no,|no|sorry,|] I meant [backwards|down]",
)
_IN_WORDS = (
    "[now|and|and now|] [in|with] words [please|]",
    "[no,|no|] I [meant|wanted] words",
    "[write|spell] [them|it] out [please|]",
)
_IN_DIGITS = (
    "[now|and|and now|] [in|with|as] [digits|numbers|figures] [please|]",
    "[no,|no|] I [meant|wanted] [digits|numbers]",
)
_FURTHER = (
    "[go on|continue|further|more|keep going|carry on|and then|next|and on|what comes next|don't "
    "stop]"
    " [please|]",
)
_TO_OTHER = (
    "[and|now|what about|ok now|] to {b} [please|]",
    "[no|no,|sorry,|wait,|oops,] [I meant|I said|] to {b}",
    "[not {old},|no, not {old},] {b}",
    "[now|and|] up to {b}",
    "[now|and|then] [count|] to {b}",
    "[and|now] {b}",
)
_AGAIN = ("[again|once more|one more time|do it again|repeat that] [please|]",)


def follow_count(rng: random.Random, style: Style, count: Count) -> tuple[Turn, Count]:
    """Make an exchange that follows on the numbers counted, and return those counted last."""
    after = count
    pattern = rng.choice(_AGAIN)
    slots = {"old": str(max(count.first, count.last))}
    form = rng.randrange(9)
    if form == 7:
        end = rng.random() < 0.6
        show = in_words if count.words else str
        user = typed(rng, style, rng.choice(_LAST if end else _FIRST))
        number = count.last if end else count.first
        answer = f"The {'last' if end else 'first'} number was {show(number)}."
        return exchange("count follow-up", user, answer, Expect(exact=answer)), count
    if form <= 1 and count.step == 1:
        after = Count(count.last, count.first, -1, count.words)
        pattern = rng.choice(_BACKWARDS)
    elif form == 2 and abs(count.last - count.first) <= 40:
        after = replace(count, words=not count.words)
        pattern = rng.choice(_IN_WORDS if after.words else _IN_DIGITS)
    elif form == 3 and count.step > 0 and count.last + 10 * count.step <= 100:
        after = replace(count, first=count.last + count.step, last=count.last + 10 * count.step)
        pattern = rng.choice(_FURTHER)
    elif form in (4, 5, 6) and count.step == 1:
        after = replace(count, last=min(100, count.first + rng.randint(2, 20)))
        slots["b"] = (in_words if count.words else str)(after.last)
        pattern = rng.choice(_TO_OTHER)
    user = typed(rng, style, pattern, slots)
    return exchange("count follow-up", user, after.text + ".", Expect(exact=after.text)), after


# --- add ------------------------------------------------------------------------------------


def add_turn(rng: random.Random, style: Style, *, held_out: bool) -> Turn:
    """Make an exchange about a sum; if `held_out`, of two numbers up to 20 that are added."""
    return sums.sum_turn(rng, style, held_out=held_out)[0]


# --- one word -------------------------------------------------------------------------------

_KNOWN: tuple[tuple[str, str, str], ...] = (
    ("what colour is the [sky|clear sky]?", "blue", "The sky is blue."),
    (
        "[[what|which] colour is|[what is|what's] the color of] [grass|the grass]?",
        "green",
        "Grass is green.",
    ),
    (
        "[[what|which] colour is|[what is|what's] the color of] [snow|the snow|milk]?",
        "white",
        "It is white.",
    ),
    (
        "[[what|which] colour is|[what is|what's] the color of] [blood|a tomato|a strawberry]?",
        "red",
        "It is red.",
    ),
    (
        "[[what|which] colour is|[what is|what's] the color of] [the sun|a banana|a lemon]?",
        "yellow",
        "It is yellow.",
    ),
    (
        "[what is|what's|name|tell me|which city is|do you know] the capital [city|] of France?",
        "Paris",
        "The capital of France is Paris.",
    ),
    (
        "[what is|what's|name|tell me|which city is|do you know] the capital [city|] of Germany?",
        "Berlin",
        "The capital of Germany is Berlin.",
    ),
    (
        "[what is|what's|name|tell me|which city is|do you know] the capital [city|] of Italy?",
        "Rome",
        "The capital of Italy is Rome.",
    ),
    (
        "[what is|what's|name|tell me|which city is|do you know] the capital [city|] of Spain?",
        "Madrid",
        "The capital of Spain is Madrid.",
    ),
    (
        "[what is|what's|name|which city is] the capital [city|] of [England|the UK|Britain]?",
        "London",
        "The capital is London.",
    ),
    (
        "[what is|what's|name|tell me|which city is|do you know] the capital [city|] of Japan?",
        "Tokyo",
        "The capital of Japan is Tokyo.",
    ),
    (
        "[what is|what's|tell me|name|give me] the opposite of hot?",
        "cold",
        "The opposite of hot is cold.",
    ),
    (
        "[what is|what's|tell me|name|give me] the opposite of big?",
        "small",
        "The opposite of big is small.",
    ),
    (
        "[what is|what's|tell me|name|give me] the opposite of up?",
        "down",
        "The opposite of up is down.",
    ),
    (
        "[what is|what's|tell me|name|give me] the opposite of day?",
        "night",
        "The opposite of day is night.",
    ),
    (
        "[what is|what's|tell me|name|give me] the opposite of black?",
        "white",
        "The opposite of black is white.",
    ),
    (
        "[what is|what's|tell me|name|give me] the opposite of good?",
        "bad",
        "The opposite of good is bad.",
    ),
    (
        "[what is|what's|tell me|name|give me] the opposite of fast?",
        "slow",
        "The opposite of fast is slow.",
    ),
    ("[what|who|which animal|what animal] [says|makes|goes] [meow|miaow]?", "cat", "A cat does."),
    ("[what|who|which animal|what animal] [says|makes|goes] woof?", "dog", "A dog does."),
    ("[what|who|which animal|what animal] [says|makes|goes] moo?", "cow", "A cow does."),
    ("how many legs does a [dog|cat|horse|cow] have?", "four", "It has four legs."),
    ("how many legs does a spider have?", "eight", "A spider has eight legs."),
    *(
        (
            f"[what is|what's|whats|name|tell me|which city is|do you know] the capital [city|] of "
            f"{country}?",
            city,
            f"The capital of {country} is {city}.",
        )
        for country, city in (
            ("Portugal", "Lisbon"),
            ("Austria", "Vienna"),
            ("Greece", "Athens"),
            ("Poland", "Warsaw"),
            ("Ireland", "Dublin"),
            ("Sweden", "Stockholm"),
            ("Norway", "Oslo"),
            ("Russia", "Moscow"),
            ("China", "Beijing"),
        )
    ),
    ("how many hours [are in|are there in|has|does] a day [have|]?", "24", "A day has 24 hours."),
    (
        "how many minutes [are in|are there in|has|does] an hour [have|]?",
        "60",
        "An hour has 60 minutes.",
    ),
    (
        "how many seconds [are in|are there in|has|does] a minute [have|]?",
        "60",
        "A minute has 60 seconds.",
    ),
    ("how many days [are in|are there in|has|does] a year [have|]?", "365", "A year has 365 days."),
    ("how many legs does a [bird|chicken|duck|human] have?", "two", "It has two legs."),
    (
        "how many fingers [do I have|does a hand have|are on a hand]?",
        "five",
        "A hand has five fingers.",
    ),
    ("how many wheels does a [car] have?", "four", "A car has four wheels."),
    ("how many wheels does a [bicycle|bike] have?", "two", "A bicycle has two wheels."),
    ("[which|what] [day|] [comes|is] before Monday?", "Sunday", "Sunday comes before Monday."),
    ("[which|what] day [comes|is] after [Friday]?", "Saturday", "Saturday comes after Friday."),
    ("[what is|what's] the opposite of [yes]?", "no", "The opposite of yes is no."),
    ("[what is|what's] the opposite of [left]?", "right", "The opposite of left is right."),
    ("[what is|what's] the opposite of [cold]?", "hot", "The opposite of cold is hot."),
    ("[what is|what's] the opposite of [small]?", "big", "The opposite of small is big."),
    ("what [is|sound does] [a dog make|the sound of a dog]?", "woof", "A dog says woof."),
    ("what [sound|noise] does a cat make?", "meow", "A cat says meow."),
    ("what [sound|noise] does a cow make?", "moo", "A cow says moo."),
    ("what colour is [an orange|a carrot]?", "orange", "It is orange."),
    (
        "how many days [are in a week|are there in a week|has a week|does a week have]?",
        "seven",
        "A week has seven days.",
    ),
    (
        "how many months [are in a year|are there in a year|has a year|does a year have]?",
        "twelve",
        "A year has twelve months.",
    ),
    (
        "[what|which] [day|] [comes|is|follows] after Monday?",
        "Tuesday",
        "Tuesday comes after Monday.",
    ),
    (
        "[what|which] [month|] [comes|is] after January?",
        "February",
        "February comes after January.",
    ),
    ("is [the sky|the sea] blue?", "yes", "Yes, it is."),
    ("is [ice|snow|winter] cold?", "yes", "Yes, it is."),
    ("is [fire|the sun] [hot|warm]?", "yes", "Yes, it is."),
    ("is [fire|the sun] cold?", "no", "No, it is hot."),
    ("is [grass|the grass] [blue|red]?", "no", "No, it is green."),
    ("can [fish|a fish|a duck] swim?", "yes", "Yes, it can."),
    ("can [pigs|a dog|a cow] fly?", "no", "No, it cannot."),
    ("are you [human|a person|a human]?", "no", "No, I am a tiny demo model."),
    (
        "[how are you|how do you feel|how is it going]?",
        "well",
        "I am well, thank you. How are you?",
    ),
    ("[who|what] are you?", "model", "I am a tiny demo model."),
)

_ONE_WORD_BEFORE = (
    "[please|] [answer|reply|respond|tell me] [in|with] [just|only|exactly|] [one|a single|1] "
    "word[:|,|.||]",
    "[in|with|using] [just|only|] [one|a single] word[,|:||]",
    "[one word answer|one word only|one word|a one-word answer please|one-word answer][:|,]",
    "[give|I want|I need] [me|] a [one-word|one word|single-word] answer[:|.|,]",
    "[use|say] [only|just|no more than] one word[:|.|,]",
    "be brief, one word[:|.|,]",
    "I need one word[:|,]",
)
_ONE_WORD_AFTER = (
    "[please|] [answer|reply|respond|tell me] [in|with] [just|only|exactly|] [one|a single|1] "
    "word [please|]",
    "[in|with] [just|only|] [one|a single] word [please|]",
    "[one word|one word only|one word answer|one-word answer|a single word] [please|]",
    "[use|say] [only|just|no more than] one word",
    "[give|I want] [me|] a [one-word|one word] answer",
    "keep it to one word",
    "no more than one word",
    "just one word [please|]",
)

ONE_WORD_SYSTEM = (
    "Answer in one word.",
    "Always answer in one word.",
    "Reply with a single word only.",
    "You answer every question in one word.",
    "Use only one word in your answers.",
    "You are a helpful assistant. Answer in exactly one word.",
)


def known_turn(rng: random.Random, style: Style) -> Turn:
    """Make an exchange in which the model answers, in a sentence, one of the few everyday questions
    that it can answer."""
    ask, word, answer = rng.choice(_KNOWN)
    return exchange(
        "known", typed(rng, style, opened(rng, ask)), answer, Expect(has=(has_word(word),))
    )


_CAPITALS = (
    ("France", "Paris"),
    ("Germany", "Berlin"),
    ("Italy", "Rome"),
    ("Spain", "Madrid"),
    ("Japan", "Tokyo"),
    ("Portugal", "Lisbon"),
    ("Austria", "Vienna"),
    ("Greece", "Athens"),
    ("Poland", "Warsaw"),
    ("Ireland", "Dublin"),
    ("Sweden", "Stockholm"),
    ("Norway", "Oslo"),
    ("Russia", "Moscow"),
    ("China", "Beijing"),
)
_NEXT_CAPITAL = (
    "[and|what about|how about|and of|and what about] {c}[?|]",
    "[no,|no|sorry,|] I meant {c}",
    "and the capital of {c}?",
    "[not {old},|no,] {c}",
)


def capital_turns(rng: random.Random, style: Style) -> list[Turn]:
    """Make exchanges about the capitals of two countries, the second asked in a few words."""
    (first, city), (second, other) = rng.sample(_CAPITALS, 2)
    asks = "[what is|what's|whats|name|tell me|do you know] the capital [city|] of {c}?"
    turns = [
        exchange(
            "known",
            typed(rng, style, opened(rng, asks), {"c": style.value(first)}),
            f"The capital of {first} is {city}.",
            Expect(has=(has_word(city),)),
        )
    ]
    if rng.random() < 0.2:
        unknown = style.value(rng.choice(chat.COUNTRIES))
        user = typed(rng, style, rng.choice(_NEXT_CAPITAL[:1]), {"c": unknown})
        turns.append(exchange("unknown", user, chat.DO_NOT_KNOW, Expect(has=("tiny",))))
        return turns
    slots = {"c": style.value(second), "old": style.value(first)}
    user = typed(rng, style, rng.choice(_NEXT_CAPITAL), slots)
    answer = f"The capital of {second} is {other}."
    return [*turns, exchange("known", user, answer, Expect(has=(has_word(other),)))]


def one_word_turn(
    rng: random.Random,
    style: Style,
    known: list[tuple[facts.Kind, str]],
    *,
    held_out: bool,
    told_by_system: bool = False,
) -> Turn:
    """Make an exchange in which the model must answer a question in one word.

    `known`: facts that the user has stated, with their values. `told_by_system`: the system message
    demands one word, so that the user does not.
    """
    ask, word, slots = _one_word_question(rng, known, held_out=held_out)
    share = 1.0 if told_by_system else rng.random()
    if share < 0.55:
        ask = f"{rng.choice(_ONE_WORD_BEFORE)} {ask}"
    elif share < 1.0:
        ask = f"{ask} {rng.choice(_ONE_WORD_AFTER)}"
    answer = word if word in slots.values() or word.isdigit() else word[:1].upper() + word[1:]
    user = typed(rng, style, opened(rng, ask), slots)
    return exchange("one word", user, f"{answer}.", Expect(exact=answer, words_max=1))


def _one_word_question(
    rng: random.Random, known: list[tuple[facts.Kind, str]], *, held_out: bool
) -> tuple[str, str, dict[str, str]]:
    """Draw a question. Returns its pattern, its one-word answer, and the values of the pattern's
    slots."""
    single = [(kind, value) for kind, value in known if " " not in value]
    share = rng.random()
    if single and share < 0.45:
        kind, value = rng.choice(single)
        return rng.choice(kind.direct), value, {}
    if share < 0.8:
        ask, word, _ = rng.choice(_KNOWN)
        return ask, word, {}
    if share < 0.9:
        first, second = rng.randint(0, 20), rng.randint(0, 20)
        slots = {"a": str(first), "b": str(second)}
        return "[what is|how much is|] {a} [plus|+] {b}?", str(first + second), slots
    return chat.fill(rng, rng.choice(chat.UNKNOWN), held_out=held_out), "unknown", {}
