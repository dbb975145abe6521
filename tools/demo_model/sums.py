"""Turns about sums: those that the model can do, those that are too hard, and what follows them."""

import random
from dataclasses import dataclass

from tools.demo_model import values
from tools.demo_model.grammar import Style, opened, typed
from tools.demo_model.turns import Expect, Turn, exchange

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


TOO_HARD = (
    "That is too hard for me. I am only a tiny demo model: I can only calculate with small numbers."
)
NOT_BY_ZERO = "Nobody can divide by zero."

_ASK_RESULT = "[what is|what's|whats|how much is|calculate|compute|tell me|work out|solve|||||]"
_ADD = (
    f"{_ASK_RESULT} {{a}} [plus|+|and|added to] {{b}}[?||]",
    "[what is|how much is|] the sum of {a} and {b}?",
    "[please|can you|] add {a} [and|to] {b}",
    "{a} + {b} = [?|]",
    "{a}+{b}[=||=?|?]",
    "{a} +{b}",
    "what does {a} plus {b} [make|equal|give|come to]?",
    "sum {a} and {b}",
    "{a} and {b} [makes|make|together|is what|are]?",
    "[what is|tell me|] the total of {a} and {b}[?|]",
    "what number is {a} plus {b}?",
    "put {a} and {b} together",
    "{a} {n} plus {b} {n}?",
    "there are {a} {n} here and {b} there. How many [in all|are there|altogether]?",
    "[what is|what's] {a}+{b}?",
    "I have {a} {n} and [get|buy|find] {b} more. How many [{n}|] do I have [now|]?",
    "[if I have|take] {a} {n} and {b} {n}, how many [{n}|] [is that|do I have|are there]?",
    "[do you know|can you tell me|tell me] what {a} plus {b} is?",
    "[quick maths:|maths question:|a sum for you:|can you do maths?|maths:] {a} plus {b}",
    "{who} has {a} {n} and gets {b} more. How many {n} does [he|she] have?",
    "[can you|] add {b} to {a} [for me|please|]",
    "[increase|raise] {a} by {b}",
    "what do you get if you add {a} and {b}?",
    "{b} more than {a}?",
)
_SUBTRACT = (
    f"{_ASK_RESULT} {{a}} [minus|-|less|take away] {{b}}[?||]",
    "[please|can you|] subtract {b} from {a}",
    "take {b} away from {a}",
    "{a} - {b} = [?|]",
    "{a}-{b}[=||?]",
    "[what is|what's] the difference [between|of] {a} and {b}?",
    "I have {a} {n} and [lose|eat|sell|give away] {b}. How many [are left|do I have left|{n} do I "
    "have]?",
    "if I have {a} {n} and [lose|eat|take away|give away] {b}, how many [are|{n} are] left?",
    "{who} has {a} {n} and gives {b} away. How many are left?",
    "what is {b} less than {a}?",
    "what does {a} minus {b} [make|equal|give]?",
)
_MULTIPLY = (
    f"{_ASK_RESULT} {{a}} [times|*|x|multiplied by] {{b}}[?||]",
    "multiply {a} [by|and|with] {b}",
    "{a} * {b} = [?|]",
    "{a}*{b}[=||?]",
    "{a}x{b}[?|]",
    "[what is|what's] the product of {a} and {b}?",
    "what does {a} times {b} [make|equal|give]?",
    "I have {a} [boxes|bags] with {b} {n} each. How many {n} [is that|are there|do I have]?",
)
_DIVIDE = (
    f"{_ASK_RESULT} {{a}} [divided by|/|:|over] {{b}}[?||]",
    "divide {a} by {b}",
    "{a}/{b}[=||?]",
    "{a} / {b} = [?|]",
    "I share {a} {n} among {b} [friends|people|children]. How many does each get?",
)
_DOUBLE = (
    "[what is|what's|] [twice|double|two times] {a}[?|]",
    "double {a}",
    "[what is|what's|] [the double of|the double] {a}?",
)
_HALF = ("[what is|what's|] half of {a}[?|]", "[what is|what's|] [one|a] half of {a}?", "halve {a}")
_THREE = (
    f"{_ASK_RESULT} {{a}} [plus|+] {{b}} [plus|+] {{c}}[?||]",
    "{a}+{b}+{c}[=|]",
    "add {a}, {b} and {c}",
    "[what is|] the sum of {a}, {b} and {c}?",
)
_HARD = (
    f"{_ASK_RESULT} {{x}} [times|*|x|divided by|multiplied by|/|to the power of|plus|+|minus|-] "
    "{y}[?|]",
    f"{_ASK_RESULT} {{x}} [plus|+|minus|-|times] {{y}}[?|]",
    f"{_ASK_RESULT} {{a}} [plus|+|minus|-|times] {{y}}[?|]",
    "[what is|what's|] {a} [divided by|/|over|:] {b}[?|]",
    "{x}[+|*|/|-|x]{y}[=||=?|?]",
    "{a}[+|*|/|-|x]{y}[=||=?|?]",
    "multiply {x} [by|and|with] {y}",
    "divide {x} by {y}",
    "divide {a} by {b}",
    "[please|] add {x} and {y}",
    "I have {x} {n} and [buy|get|lose|sell|eat] {y}. How many do I have?",
    "what is the [square root|cube|logarithm|factorial] of {a}?",
    "[sqrt|root|log|sin|cos] of {a}",
    "{a} [squared|cubed|to the power of {b}|^{b}]",
    "what is {a} percent of {x}?",
    "what is {a}% of {x}?",
    "what is {a}.{b} [plus|times|minus] {b}.{a}?",
    "[solve|what is x in|] {a}x [+|-] {b} = {x}",
    "what is {x} divided by {a}?",
    "what is ({a} + {b}) * {c}?",
    "{a} + {b} * {c}",
    "what is [pi|pi times {a}|the area of a circle|the 10th prime number|{a} factorial]?",
    "is {x} a prime number?",
    "[convert|change] {a} [miles to kilometres|inches to centimetres|dollars to euros|pounds to "
    "kilos]",
    "what is {x} in binary?",
    "[what is|] [-{d}|minus {d}|negative {d}] [+|-|plus|minus|times] {d}[?|]",
    "[what is|] {d} [+|plus|-|minus|times] [-{d}|minus {d}|negative {d}][?|]",
    "[what is|] {d}.{d} [+|plus|-|minus|*|times] [{d}|{d}.{d}|0.5|1.5][?|]",
    "[0.5|1/2|3/4|1.5|2.5|a half|a quarter] [+|plus|times|-] [0.5|1/4|{d}|1.5|a third][?|]",
    "[add|add up|sum|sum up|the sum of] {d} {d} {d} {d}",
    "[add|sum|what is the sum of] {d}, {d}, {d}, {d} and {d}",
    "{d}+{d}+{d}+{d}[+{d}|=|]",
    "{d} [+|plus] {d} [*|x|times] {d}[?|]",
    "({d}+{d})*{d}",
    "[what is|what's] the [average|mean|median] of {d}, {d} and {d}?",
    "[what is|] {d} [to the power of|^|squared plus|cubed plus] {d}[?|]",
    "[what is|calculate|] the square root of {d}[?|]",
    "sqrt({x})",
    "sqrt {d}",
    "[what is|] {d} [factorial|squared|cubed|!|percent|%][?|]",
    "half of {d} and {d}",
    "what is [a third|a quarter|two thirds|ten percent|half] of {x}?",
    "[how many|how much] is {d} [dozen|hundred|thousand|million]?",
    "convert {d} [km to miles|miles to km|kg to pounds|celsius to fahrenheit|euros to "
    "dollars|feet to metres|hours to seconds|cups to litres]",
    "how many [inches|miles|metres|grams|seconds|ounces] [are|are there] in {d} "
    "[metres|km|hours|kilos|litres|weeks]?",
    "[what is|how much is] {d} [plus|times|minus] the number of [legs of a dog|days in a week]?",
    "if {d} {n} cost {x} euros, how much [do {d} {n} cost|does one cost]?",
    "a train [goes|travels] {x} km in {d} hours, how fast is it?",
    "[solve|find x:] {d}x = {x}",
    "x + {d} = {d}, what is x?",
    "I share {a} {n} among {b} [friends|people|children]. How many does each get?",
)
_PLURALS = values.listed("""
apples, pears, eggs, books, coins, balls, cards, stones, keys, pens, hats, cats, oranges, cookies,
euros, dollars, sweets, flowers, cakes, bananas
""")
_WHO = values.listed("Tom, Anna, Mary, Ben, my sister, my brother, a man, a girl, somebody, Sam")


@dataclass(frozen=True)
class Sum:
    """A sum of two numbers, such as 3 + 4."""

    first: int
    sign: str
    second: int

    @property
    def result(self) -> int:
        """The value of the sum."""
        match self.sign:
            case "+":
                return self.first + self.second
            case "-":
                return self.first - self.second
            case "*":
                return self.first * self.second
            case _:
                return self.first // self.second

    @property
    def text(self) -> str:
        """The sum with its result, as the model says it."""
        return f"{self.first} {self.sign} {self.second} = {self.result}"


ASKS = {"+": _ADD, "-": _SUBTRACT, "*": _MULTIPLY, "/": _DIVIDE}


SMALL_MAX = 20
"""The largest number that the model adds or subtracts."""

TIMES_MAX = 10
"""The largest number that the model multiplies."""


def draw(rng: random.Random, *, held_out: bool) -> Sum:
    """Draw a sum that the model can do; more than half of them are additions."""
    share = rng.random()
    while True:
        first, second = rng.randint(0, SMALL_MAX), rng.randint(0, SMALL_MAX)
        if share < 0.48 or held_out:
            sum_ = Sum(first, "+", second)
        elif share < 0.76:
            sum_ = Sum(max(first, second), "-", min(first, second))
        else:
            sum_ = Sum(rng.randint(0, TIMES_MAX), "*", rng.randint(0, TIMES_MAX))
        if values.is_held_out(f"{sum_.first}{sum_.sign}{sum_.second}") == held_out:
            return sum_


def expect(result: int) -> Expect:
    """Return the condition on an answer with this result."""
    return Expect(has=(rf"(=|is|^) *{result}(?!\d)",))


def wording(rng: random.Random, style: Style, sum_: Sum) -> str:
    """Write a question for a sum."""
    small = sum_.first <= 100 and sum_.second <= 100
    show = in_words if small and rng.random() < 0.25 else str
    slots = {
        "a": show(sum_.first),
        "b": show(sum_.second),
        "n": rng.choice(_PLURALS),
        "who": rng.choice(_WHO),
    }
    return typed(rng, style, opened(rng, rng.choice(ASKS[sum_.sign])), slots)


def sum_turn(rng: random.Random, style: Style, *, held_out: bool) -> tuple[Turn, Sum | None]:
    """Make an exchange about a sum, and return the sum, None if it was none of two numbers."""
    share = 1.0 if held_out else rng.random()
    if share < 0.27:
        return _hard_turn(rng, style), None
    if share < 0.33:
        return _special_turn(rng, style), None
    sum_ = draw(rng, held_out=held_out)
    if share < 0.40:
        return _claim_turn(rng, style, sum_), sum_
    return exchange("add", wording(rng, style, sum_), sum_.text, expect(sum_.result)), sum_


def _beyond(rng: random.Random) -> Sum:
    """Draw a sum that looks like an easy one, but of which one number or the result is outside of
    what the model can do."""
    sign = rng.choice("++--**")
    small = rng.randint(0, SMALL_MAX)
    large = rng.choice((rng.randint(SMALL_MAX + 1, 40), rng.randint(SMALL_MAX + 1, 120), 100))
    if sign == "*":
        small = rng.randint(0, TIMES_MAX)
        large = rng.choice((rng.randint(TIMES_MAX + 1, 20), rng.randint(TIMES_MAX + 1, 99)))
    if sign == "-" and rng.random() < 0.5:
        first, second = sorted(rng.sample(range(SMALL_MAX + 1), 2))
        return Sum(first, sign, second)
    first, second = (small, large) if rng.random() < 0.4 and sign != "-" else (large, small)
    return Sum(first, sign, second)


def _hard_turn(rng: random.Random, style: Style) -> Turn:
    if rng.random() < 0.35:
        sum_ = _beyond(rng)
        user = wording(rng, style, sum_)
        if rng.random() < 0.1:
            slots = {"a": str(sum_.first), "b": str(sum_.second), "s": sum_.sign}
            slots["r"] = str(sum_.result)
            user = typed(rng, style, rng.choice(_CLAIMS), slots)
        return exchange("too hard", user, TOO_HARD, Expect(has=("tiny demo model",)))
    top = 10 ** rng.choice((2, 2, 2, 3, 3, 4, 5, 6))
    slots = {
        "a": str(rng.randint(2, 99)),
        "b": str(rng.randint(2, 99)),
        "c": str(rng.randint(2, 99)),
        "x": str(rng.randint(SMALL_MAX + 1, top)),
        "y": str(rng.randint(SMALL_MAX + 1, top)),
        "n": rng.choice(_PLURALS),
    }
    if rng.random() < 0.06:
        user = typed(rng, style, f"{_ASK_RESULT} {{a}} [divided by|/] [0|zero][?|]", slots)
        return exchange("too hard", user, NOT_BY_ZERO, Expect(has=("zero",)))
    if rng.random() < 0.5:
        sign = rng.choice("++-*/")
        first = rng.randint(0, 99)
        second = rng.randint(SMALL_MAX + 1, 99) if sign in "+-" else rng.randint(TIMES_MAX + 1, 99)
        if rng.random() < 0.3:
            first, second = second, first
        user = wording(rng, style, Sum(first, sign, second))
        return exchange("too hard", user, TOO_HARD, Expect(has=("tiny demo model",)))
    pattern = rng.choice(_HARD)
    while "{d}" in pattern:
        pattern = pattern.replace("{d}", str(rng.randint(1, 12)), 1)
    user = typed(rng, style, opened(rng, pattern), slots)
    return exchange("too hard", user, TOO_HARD, Expect(has=("tiny demo model",)))


def _special_turn(rng: random.Random, style: Style) -> Turn:
    """Make an exchange about a double, a half or three numbers."""
    first = rng.randint(1, 10)
    if rng.random() < 0.4:
        user, sum_ = typed(rng, style, rng.choice(_DOUBLE), {"a": str(first)}), Sum(2, "*", first)
    elif rng.random() < 0.5:
        user = typed(rng, style, rng.choice(_HALF), {"a": str(2 * first)})
        sum_ = Sum(2 * first, "/", 2)
    else:
        a, b, c = (rng.randint(0, 6) for _ in range(3))
        slots = {"a": str(a), "b": str(b), "c": str(c)}
        user = typed(rng, style, opened(rng, rng.choice(_THREE)), slots)
        return exchange("add", user, f"{a} + {b} + {c} = {a + b + c}", expect(a + b + c))
    return exchange("add", user, sum_.text, expect(sum_.result))


_CLAIMS = (
    "[is|so|] {a} {s} {b} [=|equals|equal to|is] {r}[?|, right?|, correct?]",
    "is {a} {s} {b} {r}?",
    "{a} {s} {b} [is|=|equals|makes] {r}[.|!|, no?|, isn't it?]",
    "I [think|believe|say|know] {a} {s} {b} [is|=] {r}",
)


def _claim_turn(rng: random.Random, style: Style, sum_: Sum) -> Turn:
    """Make an exchange about a sum with a result that the user claims, every second time wrong."""
    right = rng.random() < 0.5
    claimed = sum_.result if right else sum_.result + rng.choice((-2, -1, 1, 2, 10))
    slots = {"a": str(sum_.first), "b": str(sum_.second), "s": sum_.sign, "r": str(claimed)}
    user = typed(rng, style, rng.choice(_CLAIMS), slots)
    answer = f"{'Yes' if right else 'No'}, {sum_.text}."
    return exchange("add", user, answer, expect(sum_.result))


_MORE = {
    "+": (
        "[and|now|] [plus|add] {b} [more|to that|to it|]",
        "[and|now|] [+|plus] {b}[?|]",
        "[and if I|what if I] add {b} [more|to that]?",
        "{b} more",
    ),
    "-": (
        "[and|now|] [minus|subtract|take away] {b} [from that|from it|]",
        "[and|now|] [-|minus] {b}[?|]",
        "{b} less",
    ),
    "*": ("[and|now|] [times|multiplied by|multiply by] {b}[?|]", "[and|now|] times {b}[?|]"),
    "/": ("[and|now|] [divided by|divide by|divide it by|/] {b}[?|]",),
}
_TWICE = ("[and|now|] [double it|double that|twice that|times two|twice that much][?|]",)
_INSTEAD = (
    "[and|what about|how about|now|ok and|and what is|and what about] {a} {w} {b}[?|]",
    "[no|no,|sorry,|oh,|wait,|oops,] I [meant|mean|wanted|said] {a} {w} {b}",
    "[actually|I meant|rather] {a} {w} {b}",
    "[not {x},|no, not {x},] {a} {w} {b}",
)
_SECOND_INSTEAD = (
    "[and|what about|how about|and with] {b}[?|]",
    "[no|no,|sorry,|oh,|wait,|oops,|] I [meant|mean|said] {w} {b}",
    "[not {x},|no, not {x},|no,|not {x} but] {b}",
    "[and|now] {w} {b} instead[?|]",
)
_OTHER_SIGN = (
    "[no|no,|sorry,|wait,|oops,|] I [meant|mean|said] {w}[, not {old}|]",
    "[and|now|what about|ok and] [with|] {w}[?|]",
    "not {old}, {w}",
)
_SURE = (
    "[are you sure|really|is that right|is that correct|sure|certain|you sure|is it][?|]",
    "[why|why is that|how do you know|how come|how did you get that|prove it|explain][?|]",
    "[what was the result|say that again|how much was it|again|what did you get][?|]",
    "[that is|that's|this is] [wrong|not right|incorrect|not correct]",
    "[no|nope|wrong|no it is not|no it isn't]",
    "[I think|I thought|no,|isn't] it [is|was] {r}",
)
_WORDS = {"+": ("plus", "+"), "-": ("minus", "-"), "*": ("times", "*"), "/": ("divided by", "/")}


def follow(rng: random.Random, style: Style, sum_: Sum) -> tuple[Turn, Sum]:
    """Make an exchange that follows on a sum just done, and return the sum done last."""
    form = rng.randrange(9)
    word = rng.choice(_WORDS[sum_.sign])
    if form <= 1:
        sign = rng.choice("+++---**/")
        second = rng.randint(1, TIMES_MAX)
        if sum_.result > (TIMES_MAX if sign == "*" else SMALL_MAX) or (
            sign == "/" or (sign == "-" and sum_.result < second)
        ):
            user = typed(rng, style, rng.choice(_MORE[sign]), {"b": str(second)})
            return exchange("too hard", user, TOO_HARD, Expect(has=("tiny demo model",))), sum_
        asks, after = _MORE[sign], Sum(sum_.result, sign, second)
        if sum_.result <= TIMES_MAX and rng.random() < 0.15:
            user = typed(rng, style, rng.choice(_TWICE))
            after = Sum(2, "*", sum_.result)
        else:
            user = typed(rng, style, rng.choice(asks), {"b": str(second)})
        return exchange("sum follow-up", user, after.text, expect(after.result)), after
    if form <= 3:
        after = draw(rng, held_out=False)
        word = rng.choice(_WORDS[after.sign])
        slots = {"a": str(after.first), "b": str(after.second), "w": word, "x": str(sum_.second)}
        user = typed(rng, style, rng.choice(_INSTEAD), slots)
        return exchange("sum follow-up", user, after.text, expect(after.result)), after
    if form <= 5 and sum_.sign != "/":
        second = rng.randint(0, min(TIMES_MAX, max(sum_.first, 1)))
        after = Sum(sum_.first, sum_.sign, second)
        slots = {"b": str(second), "w": word, "x": str(sum_.second)}
        user = typed(rng, style, rng.choice(_SECOND_INSTEAD), slots)
        return exchange("sum follow-up", user, after.text, expect(after.result)), after
    signs = [
        s for s in "+-*" if s != sum_.sign and (s != "*" or max(sum_.first, sum_.second) <= 10)
    ]
    if form == 6 and sum_.sign != "/" and sum_.second <= sum_.first:
        sign = rng.choice(signs)
        after = Sum(sum_.first, sign, sum_.second)
        slots = {"w": _WORDS[sign][0], "old": _WORDS[sum_.sign][0]}
        user = typed(rng, style, rng.choice(_OTHER_SIGN), slots)
        return exchange("sum follow-up", user, after.text, expect(after.result)), after
    index = rng.randrange(len(_SURE))
    user = typed(rng, style, _SURE[index], {"r": str(sum_.result + rng.choice((-1, 1, 2)))})
    start = (
        "Yes, ",
        "Because ",
        "",
        "I am sorry, but I think ",
        "I am sorry, but I think ",
        "No, ",
    )
    answer = f"{start[index]}{sum_.text}."
    return exchange("sum follow-up", user, answer, expect(sum_.result)), sum_
