"""Turns in which the user asks the model to repeat, count, add or answer in one word."""

import random

from tools.demo_model import chat, facts, values
from tools.demo_model.grammar import Style, opened, typed
from tools.demo_model.turns import Expect, Turn, exchange, has_word

_ONES = values.listed("""
zero, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen,
fourteen, fifteen, sixteen, seventeen, eighteen, nineteen
""")
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(number: int) -> str:
    """Spell a number from 0 to 100 in English words."""
    if number < 20:
        return _ONES[number]
    if number == 100:
        return "one hundred"
    tens, ones = divmod(number, 10)
    return _TENS[tens - 2] + (f"-{_ONES[ones]}" if ones else "")


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


def sentence(rng: random.Random, *, held_out: bool) -> str:
    """Draw a short text that the model is to repeat."""

    def one(pool: list[str]) -> str:
        return values.choose(rng, pool, held_out=held_out)

    def odd() -> str:
        return values.invent(rng, held_out=held_out)

    form = rng.randrange(9)
    if form == 0:
        return values.choose(rng, _PHRASES, held_out=held_out)
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


def repeat_turn(rng: random.Random, style: Style, *, held_out: bool) -> Turn:
    """Make an exchange in which the model repeats a text exactly, without its quotation marks."""
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


def count_turn(rng: random.Random, style: Style, *, held_out: bool) -> Turn:
    """Make an exchange in which the model counts, up or down, between two numbers.

    The model answers in words if the numbers are in words, unless the user asks for the other form.
    """
    if rng.random() < 0.12 and not held_out:
        first, last = 1, rng.choice((10, 20, 30, 30, 30, 50, 100))
    else:
        first, last = span(rng, held_out=held_out)
    words = rng.random() < 0.5 and last - first <= 40
    step = 1
    if first == 1 and rng.random() < 0.4:
        pattern = rng.choice(_COUNT_TO)
    elif rng.random() < 0.15:
        first, last, step = last, first, -1
        pattern = rng.choice(_COUNT_DOWN_ONE if last == 1 else _COUNT_DOWN)
    else:
        pattern = rng.choice(_COUNT)
    show = in_words if words else str
    slots = {"a": show(first), "b": show(last)}
    tail = ""
    if rng.random() < 0.08:
        words = not words
        show = in_words if words else str
        tail = " in words" if words else rng.choice((" in digits", " in figures", " with digits"))
    text = ", ".join(show(number) for number in range(first, last + step, step))
    user = typed(rng, style, opened(rng, pattern + tail), slots)
    return exchange("count", user, text + ".", Expect(exact=text))


# --- add ------------------------------------------------------------------------------------

_ADD = (
    "[what is|what's|how much is|calculate|compute|tell me|work out|what do you get for||||] "
    "{a} [plus|+|and|added to] {b}[?||]",
    "[what is|how much is|] the sum of {a} and {b}?",
    "[please|can you|] add {a} and {b}",
    "[please|can you|] add {b} to {a}",
    "{a} + {b} = [?|]",
    "{a}+{b}[=||=?|?]",
    "what does {a} plus {b} [make|equal|give|come to]?",
    "sum {a} and {b}",
    "{a} and {b} [makes|make|together|is what|are]?",
    "[what is|tell me|] the total of {a} and {b}[?|]",
    "what number is {a} plus {b}?",
    "put {a} and {b} together",
    "{a} {n} plus {b} {n}?",
    "there are {a} {n} here and {b} there. How many [in all|are there|altogether]?",
    "[what is|what's] {a}+{b}?",
    "I have {a} {n} and get {b} more. How many [{n}|] do I have [now|]?",
    "[if I have|take] {a} {n} and {b} {n}, how many [{n}|] [is that|do I have|are there]?",
    "[do you know|can you tell me|tell me] what {a} plus {b} is?",
    "solve {a} + {b}",
    "[quick maths:|maths question:|a sum for you:] {a} plus {b}",
)
_SUBTRACT = (
    "[what is|what's|how much is|calculate||||] {a} [minus|-|less] {b}[?||]",
    "[please|] subtract {b} from {a}",
    "take {b} away from {a}",
    "{a} - {b} = [?|]",
)
_TOO_HARD = (
    "[what is|what's|calculate|] {a} [times|*|x|divided by|multiplied by|/|to the power of] {b}?",
    "multiply {a} [by|and|with] {b}",
    "divide {a} by {b}",
    "what is the square root of {a}?",
)
_LARGE = ("[what is|what's|calculate|] {a} [plus|+|minus] {b}?", "[please|] add {a} and {b}")
_PLURALS = [
    "apples",
    "pears",
    "eggs",
    "books",
    "coins",
    "balls",
    "cards",
    "stones",
    "keys",
    "pens",
    "hats",
    "cats",
]
TOO_HARD = "I am only a tiny demo model: I can only add small numbers."


def add_turn(rng: random.Random, style: Style, *, held_out: bool) -> Turn:
    """Make an exchange about the sum of two numbers up to 20.

    Some training exchanges are instead about a difference, or about a calculation that is too hard
    for the model.
    """
    share = rng.random()
    if not held_out and share < 0.1:
        return _too_hard(rng, style)
    while True:
        first, second = rng.randint(0, 20), rng.randint(0, 20)
        if values.is_held_out(f"{first}+{second}") == held_out:
            break
    show = in_words if rng.random() < 0.3 else str
    if not held_out and share < 0.2 and first >= second:
        pattern, sign, result = rng.choice(_SUBTRACT), "-", first - second
    else:
        pattern, sign, result = rng.choice(_ADD), "+", first + second
    slots = {"a": show(first), "b": show(second), "n": rng.choice(_PLURALS)}
    user = typed(rng, style, opened(rng, pattern), slots)
    answer = f"{first} {sign} {second} = {result}"
    return exchange("add", user, answer, Expect(has=(rf"(=|is|^) *{result}(?!\d)",)))


def _too_hard(rng: random.Random, style: Style) -> Turn:
    if rng.random() < 0.5:
        pattern, low = rng.choice(_LARGE), 101
    else:
        pattern, low = rng.choice(_TOO_HARD), 2
    slots = {"a": str(rng.randint(low, 999)), "b": str(rng.randint(low, 999))}
    user = typed(rng, style, opened(rng, pattern), slots)
    return exchange("too hard", user, TOO_HARD, Expect(has=("tiny demo model",)))


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
