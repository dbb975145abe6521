"""Turns about stories: long and short ones, about what the user names, and what is said of them."""

import random
from dataclasses import dataclass, replace

from tools.demo_model import values
from tools.demo_model.grammar import Style, capital, expand, opened, typed
from tools.demo_model.plots import PLOTS, Plot
from tools.demo_model.turns import Expect, Turn, cut_short, exchange, has_word

_PLAIN_ASKS = (
    "[please|can you|could you|would you|now||||] tell me a "
    "[short|little|nice|good|bedtime|funny|long|]"
    " story [please|]",
    "[please|can you|could you|] [write|make up|give me|invent] a [short|little|nice|long|] "
    "story [for me|]",
    "[I want|I would like|I'd like] [to hear|to read|] a [short|good|] story",
    "[tell|read] [me|us] [a|another|one more] [story|tale|bedtime story|fairy tale]",
    "[do you know|got|have you got] a [good|] story?",
    "[entertain me with|I am in the mood for|how about telling me|I feel like] a story",
    "[do you have|have you got] [any|some] stories [for me|]?",
    "[one|any] story [will do|please]",
    "[can|will] you [make up|invent|think of] a [story|tale]?",
    "[let's have|give us|read us] a [story|tale]",
    "story [please|time]",
    "a story please",
    "[another|one more] story [please|]",
    "[tell me|write] a story of [one hundred|100|a hundred] words",
    "once upon a time",
    "[let me|let us] hear a story",
    "can you tell stories?",
    "[tell me|give me|I want] [something|anything] to [read|listen to]: a story",
    "[surprise me with|I need|we want|gimme|lemme hear|wanna hear|I wanna hear] a [good|nice|] "
    "[story|tale] [now|]",
    "[tell me|do you know] [something|a story] for [children|kids|my son|my daughter|bedtime]",
    "[can you|could you|] [write|tell] [something|a text] [creative|like a fairy tale]",
    "[I cannot sleep|I can't sleep|I am bored][,|.] [tell me|read me|can you tell me] a story",
    "bedtime story [please|]",
    "fairy tale [please|]",
    "stories?",
)
_SHORT_ASKS = (
    "[please|can you||] tell me a [very short|tiny|really short|super short|mini|three-sentence|"
    "two-sentence] story [please|]",
    "[tell me|write] a story in [one sentence|two sentences|three sentences|a few words|few words]",
    "a [very short|tiny|mini] story [please|]",
    "[quick|very short|tiny] story [please|]",
    "a story, but [keep it short|very short|only a few sentences|make it quick]",
)
_SHORT_ABOUT_ASKS = (
    "[please|can you||] tell me a [very short|tiny|really short|super short|mini] story about "
    "{hero} [please|]",
    "[tell me|write] a story about {hero} in [one sentence|two sentences|three sentences|a few "
    "words]",
    "a [very short|tiny|mini] story about {hero}",
    "a story about {hero}, but [keep it short|very short|only a few sentences]",
)
_ABOUT_ASKS = (
    "[please|can you|could you||||] tell me a [short|little|nice|long|] story [about|of|with] "
    "{hero}",
    "[please|] [write|make up|give me|tell|invent] [me|] a [short|] story [about|with] {hero} "
    "[in it|]",
    "[I want|I would like] [to hear|] a story about {hero}",
    "story about {hero} [please|]",
    "[tell me|do you know] a [tale|fairy tale|bedtime story] about {hero}",
    "a story about {hero} [please|]",
    "[a|one] [funny|scary|sad|happy|good|nice|bedtime] story [about|with] {hero} [please|]",
    "[tell me|give me|write] a [funny|scary|sad|happy|exciting|nice|cute] [story|tale] about "
    "{hero}",
    "[tell me|tell us] about {hero}[, a story|in a story]",
    "[gimme|lemme hear|wanna hear|I wanna hear|can I have|could I get] a story about {hero}",
    "[can you|could you|] [make up|invent|think of] [something|a story|a tale] about {hero}",
    "once upon a time there was {hero}",
    "story: {hero}",
    "{hero} story",
    "[I like {hero}.|I love {hero}.] [tell me|write] a story about [it|that|them]",
)

_ODD_ASKS = (
    "[please|can you|] tell me a story [with|that has] a "
    "[sad|happy|surprising|bad|funny|different] "
    "[ending|end|beginning|middle]",
    "[please|can you|] [tell me|write] a story without [animals|a hero|people|the letter e|words|"
    "{hero}|an end]",
    "[please|can you|] [tell me|write] [half a story|a story backwards|a story in rhymes|a "
    "story in "
    "french|a true story|a story with pictures|a story of {number} words|a story in {number} "
    "words|a story with {number} [chapters|characters|sentences]|a novel|a whole book|a story "
    "in the "
    "first person|a story in verse]",
    "[tell|write] [me|] the story of [Hansel and Gretel|Snow White|Red Riding Hood|Cinderella|the "
    "three little pigs|Harry Potter|Hamlet|your life|Romeo and Juliet|Star Wars|Adam and Eve]",
    "[tell me|write] a story [together with me|with me|where I decide|that I can choose|about "
    "{hero}, but in rhymes]",
)
ODD = (
    "I cannot tell such a story, because I am only a tiny demo model. Ask me for a story about an "
    "animal or a person."
)
_CHANGES = (
    "[make|tell] it [funnier|sadder|scarier|more exciting|better|happier|nicer|more interesting|in "
    "french|rhyme|for adults]",
    "[change|rewrite|edit] [it|the end|the ending|the story|the name of the hero|the beginning]",
    "[give it|it needs|can it have|with] a [happy|sad|different|better|new] [end|ending]",
    "[add|put in] [a {kind}|a dragon|more action|another friend|a song|some magic|a bear]",
    "[use|take] a [bear|dragon|cat|girl|robot] instead",
)
UNCHANGED = "I cannot change a story. I can tell it shorter, or tell another one."
_DETAILS = (
    "what [colour|color] was [it|he|she|the {kind}|{name}|the house|the hat]?",
    "how old was [{name}|he|she|it|{friend}|the {kind}]?",
    "[where|when] did [{name}|he|she|it|they] [live|sleep|eat|go|meet|learn that]?",
    "[what|who] was [his|her|its] [mother|father|job|age|favourite food|last name|address] "
    "[called|]?",
    "what did [{name}|{friend}|they|he|she] [eat|wear|drink|look like|think|buy]?",
    "how [big|tall|fast|rich|strong] was [{name}|he|she|it|the {kind}]?",
    "[was|is] [{name}|he|she|it] [married|rich|old|real|dangerous|a boy|a girl]?",
    "what was the [first|second|third|last] [word|sentence|line]?",
    "[which|what] [year|day|month|country|city|season] was it [in|]?",
    "[count the words|how many words was that|how many words|how long was it|how many people were "
    "in it][?|]",
    "did [{name}|he|she|they] [marry|die|come back|sleep well|become rich]?",
)
NOT_SAID = "The story does not say that. I am only a tiny demo model."

_HEROES = values.listed("""
fox, bear, rabbit, mouse, owl, turtle, frog, duck, hedgehog, robot, dragon, cat, dog, knight,
princess, wizard, pirate, girl, boy, goat, penguin, elephant, snail, witch
""")
_HIS = values.listed("Milo, Pip, Bruno, Otis, Oskar, Tobi, Basil, Rufus")
_HER = values.listed("Nora, Tilly, Luna, Wanda, Mina, Hattie, Olive, Dora")
_FRIENDS = (
    "crow",
    "snail",
    "squirrel",
    "beaver",
    "robin",
    "toad",
    "hare",
    "goose",
    "mole",
    "badger",
)
_FRIEND_NAMES = values.listed("Bess, Finn, Greta, Hal, Ivy, Jonas, Kit, Lotte, Moss, Quill")
_PLACES = (
    "at the edge of a quiet forest",
    "by a wide blue lake",
    "on a small green hill",
    "in a village near the sea",
    "in a green valley",
    "near the old mill",
)
_SHE = frozenset(
    values.listed("""
girl, princess, queen, witch, mother, sister, grandmother, aunt, daughter, woman, lady, hen, cow,
nurse, mermaid, fairy
""")
)
_SHE_NAMES = frozenset(
    values.listed("""
Lucy, Sophie, Alice, Claire, Chloe, Grace, Zoe, Lily, Ruby, Ingrid, Astrid, Mei, Ling, Camille,
Heidi, Kate, Meg, Beth, Ann, Sue, Karen, Susan, Marie, Amy, Joy, Eve, Mary, Jane, Niamh, Siobhan,
Sarah, Leah, Hannah, Yuki, Molly, Daisy, Emily, Rose
""")
)
_TOPICS = values.listed("""
space, the sea, the moon, the stars, love, friendship, winter, summer, Christmas, the forest,
school, football, music, pizza, cheese, chocolate, magic, treasure, time, rain, snow, computers,
trains, flowers, books, ice cream, the future, the desert, a big adventure, bananas, nothing,
Halloween, the weather, dreams, a long journey, war and peace, the internet, the wind
""")
_PLACE_TOPICS = values.listed("""
on the moon, in space, in London, in the jungle, on a farm, in a castle, under the sea, on Mars,
in the desert, on an island, in a big city, at school, in Paris, in the snow, on a ship
""")
_PEOPLE = values.listed("""
girl, boy, princess, prince, king, queen, knight, wizard, witch, pirate, teacher, baker, farmer,
robot, ghost, alien, monster, giant, fairy, unicorn, mermaid, astronaut, detective, superhero,
dinosaur, ninja, vampire, zombie, troll, elf, snowman, angel, chicken, bee, butterfly, shark,
kitten, puppy, baby, grandmother, football player, programmer
""")


@dataclass(frozen=True)
class Cast:
    """The hero and the place of a story, and what the user wants in it.

    ``hero`` has its article; ``topic`` is something that the hero loves, "" if the user named none.
    """

    hero: str
    name: str
    she: bool
    kind: str
    friend: str
    place: str
    topic: str = ""

    @property
    def slots(self) -> dict[str, str]:
        """The values of the slots of a plot."""
        he, his, him = ("she", "her", "her") if self.she else ("he", "his", "him")
        return {
            "H": self.hero,
            "N": self.name,
            "he": he,
            "He": he.capitalize(),
            "his": his,
            "him": him,
            "K": self.kind,
            "F": self.friend,
            "P": self.place,
        }


@dataclass(frozen=True)
class Told:
    """A story that the model has told."""

    plot: Plot
    cast: Cast


def is_she(noun: str, name: str) -> bool:
    """Guess whether a hero is called "she", from the noun and from the name."""
    if noun in _SHE:
        return True
    return noun != "boy" and (name in _HER or name in _SHE_NAMES or name[-1:] == "a")


def with_article(noun: str) -> str:
    """Put "a" or "an" before a noun."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def draw_cast(rng: random.Random, noun: str | None = None, name: str | None = None) -> Cast:
    """Draw who is in a story; what is not given is drawn."""
    hero = noun
    if hero is None:
        hero = " ".join(
            (rng.choice(("small", "young", "brave", "clever", "", "")), rng.choice(_HEROES))
        )
    hero = hero.strip()
    if name is None:
        name = rng.choice(_HER if hero.split()[-1] in _SHE or rng.random() < 0.5 else _HIS)
        if hero.endswith(("boy", "king", "prince", "wizard", "grandfather")):
            name = rng.choice(_HIS)
    return Cast(
        hero=with_article(hero),
        name=name,
        she=is_she(hero.split()[-1], name),
        kind=rng.choice(_FRIENDS),
        friend=rng.choice(_FRIEND_NAMES),
        place=rng.choice(_PLACES),
    )


def long_text(rng: random.Random, told: Told) -> str:
    """Write a story of a hundred words or more."""
    plot, cast = told.plot, told.cast
    opening = plot.opening
    middle = ""
    if cast.topic:
        middle = (
            f"{{N}} loved {cast.topic} and {rng.choice(('talked', 'dreamed', 'thought'))} of "
            + ("it all day long. " if not cast.topic.endswith("s") else "them all day long. ")
        )
        if cast.topic.startswith(("on ", "in ", "at ", "under ")):
            middle = f"All of this happened {cast.topic}. "
    text = f"{opening} {middle}{plot.body}"
    return _filled(rng, text, cast)


def short_text(rng: random.Random, told: Told) -> str:
    """Write the same story in few words."""
    return _filled(rng, told.plot.short, told.cast)


def _filled(rng: random.Random, text: str, cast: Cast) -> str:
    return capital(expand(rng, text).format(**cast.slots))


def tell(rng: random.Random, noun: str | None = None) -> str:
    """Make a long story about `noun`; None: about a random hero."""
    return long_text(rng, Told(rng.choice(PLOTS), draw_cast(rng, noun)))


def _animal(rng: random.Random, *, held_out: bool) -> str:
    share = rng.random()
    if share < 0.25:
        return rng.choice(_PEOPLE)
    pool = values.ANIMALS if share < 0.7 else values.NOUNS
    noun = values.choose(rng, pool, held_out=held_out)
    if rng.random() < 0.2:
        noun = values.invent(rng, held_out=held_out)
    if rng.random() < 0.25:
        noun = f"{values.choose(rng, values.ADJECTIVES, held_out=held_out)} {noun}"
    return noun


def _named(rng: random.Random, *, held_out: bool) -> str:
    if rng.random() < 0.5:
        return values.choose(rng, values.NAMES, held_out=held_out)
    return values.invent(rng, held_out=held_out).capitalize()


def plural(noun: str) -> str:
    """Return the regular plural of a noun."""
    if noun.endswith("mouse"):
        return noun[:-5] + "mice"
    if noun.endswith("wolf"):
        return noun[:-1] + "ves"
    if noun.endswith(("sheep", "fish")):
        return noun
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def _wished(rng: random.Random, style: Style, *, held_out: bool) -> tuple[str, Cast]:
    """Draw what the user wants a story about, and the cast that it asks for."""
    noun = _animal(rng, held_out=held_out)
    cast = draw_cast(rng, style.value(noun))
    form = rng.random()
    if form < 0.27:
        return with_article(noun), cast
    if form < 0.37:
        return plural(noun), cast
    if form < 0.42:
        return noun, cast
    if form < 0.53:
        name = _named(rng, held_out=held_out)
        joint = rng.choice(("named", "called", "with the name"))
        return f"{with_article(noun)} {joint} {name}", draw_cast(
            rng, style.value(noun), style.value(name)
        )
    if form < 0.59:
        name = _named(rng, held_out=held_out)
        return f"my {noun} {name}", draw_cast(rng, style.value(noun), style.value(name))
    if form < 0.62:
        number = rng.choice(("two", "three", "two", "2", "some", "many"))
        return f"{number} {plural(noun)}", replace(cast, kind=style.value(noun))
    if form < 0.67:
        other = _animal(rng, held_out=held_out)
        return f"{with_article(noun)} and {with_article(other)}", replace(
            cast, kind=style.value(other)
        )
    if form < 0.80:
        topic = rng.choice(_TOPICS)
        return topic, replace(draw_cast(rng), topic=style.value(topic))
    if form < 0.87:
        topic = rng.choice(_TOPICS)
        joint = rng.choice(("and", "who loves", "that likes"))
        return f"{with_article(noun)} {joint} {topic}", replace(cast, topic=style.value(topic))
    if form < 0.92:
        place = rng.choice(_PLACE_TOPICS)
        return f"{with_article(noun)} {place}", replace(cast, topic=style.value(place))
    name = _named(rng, held_out=held_out)
    return name, draw_cast(rng, rng.choice(("hero", "child")), style.value(name))


def _plot_for(rng: random.Random, cast: Cast, but: Plot | None = None) -> Plot:
    """Draw a plot other than `but`; one that opens with the hero if the user named a topic."""
    return rng.choice(
        [plot for plot in PLOTS if plot is not but and (not cast.topic or "{N}" in plot.opening)]
    )


def _odd_turn(rng: random.Random, style: Style) -> tuple[Turn, None]:
    """Make an exchange about a story of a form that the model does not know."""
    hero = style.value(_wished(rng, style, held_out=False)[0])
    slots = {"hero": hero, "number": str(rng.randint(2, 1000))}
    user = typed(rng, style, opened(rng, rng.choice(_ODD_ASKS)), slots)
    return exchange("story follow-up", user, ODD, Expect(exact=ODD)), None


def ask_story(
    rng: random.Random, style: Style, *, held_out: bool, short: bool = False
) -> tuple[Turn, Told | None]:
    """Make an exchange about a story, and return the story beside it."""
    if not held_out and not short and rng.random() < 0.1:
        return _odd_turn(rng, style)
    cast = draw_cast(rng)
    pattern, wish = rng.choice(_SHORT_ASKS if short else _PLAIN_ASKS), ""
    has: tuple[str, ...] = ("the end",)
    if rng.random() < 0.6:
        wish, cast = _wished(rng, style, held_out=held_out)
        pattern = rng.choice(_SHORT_ABOUT_ASKS if short else _ABOUT_ASKS)
        has = ("the end", has_word(cast.topic or cast.hero))
    told = Told(_plot_for(rng, cast), cast)
    user = typed(rng, style, opened(rng, pattern), {"hero": style.value(wish)})
    answer = short_text(rng, told) if short else long_text(rng, told)
    if short:
        has = ("the end",)
    return exchange("story", user, answer, Expect(words_min=15 if short else 100, has=has)), told


def story_turn(rng: random.Random, style: Style, *, held_out: bool) -> Turn:
    """Make an exchange about a long story, in half of all cases about what the user names."""
    return ask_story(rng, style, held_out=held_out)[0]


# --- what is said about a story that has just been told -----------------------------------------

_ANOTHER = (
    "[another|another one|one more|another story|one more story|a different one|a different story|"
    "again, a new one|next|a new one|more|more please|tell me another|tell me another one] "
    "[please|]",
    "[do you have|got|do you know] [another|another one|any more|more stories]?",
    "[can you|could you|please] tell [me|] [another|another one|a different one|one more]?",
    "[I want|I'd like] [another|one more|a new] [story|one]",
    "[nice|good|cool|great|thanks|lol|haha], [another|another one|one more] [please|]",
    "I know that one[, another|. tell me another|]",
    "[not that one|that one was boring|too boring], [another|another one|a different one]",
)
_OTHER_HERO = (
    "[now|and|ok now|and now] [one|a story|another one] about {hero}",
    "[another|another one|one more|a different one], [about|with] {hero}",
    "[what|how] about {hero}?",
    "[can you tell|tell] [me|] one about {hero}?",
    "[no,|no|sorry,|oh,] I [meant|wanted|said] [a story about|one about|] {hero}",
    "no, {hero}[!|.|]",
    "[the same|the same story|again], but [with|about] {hero}",
    "make it {hero}",
    "[change|replace] the hero [to|with|by] {hero}",
)
_SHORTER = (
    "[shorter|shorter please|a shorter one|too long|that was too long|make it shorter|short "
    "version|shorter version|the short version please|tl;dr|tldr]",
    "[can you|could you|please] [make|tell|keep|do] it [shorter|short|in a few words|in one "
    "sentence|in two sentences]",
    "[sum it up|summarise it|summarize it|summarise the story|in short|in one sentence|in a few "
    "words] [please|]",
    "[now|] [a|the] [shorter|short] [one|story|version] [please|]",
    "[that is|it is|it was] too long[, shorter|]",
)
_LONGER = (
    "[longer|longer please|a longer one|make it longer|too short|that was too short|the long "
    "version|tell me more|more|the whole story|more details]",
    "[can you|could you|please] [make|tell] it [longer|in full]",
)
_AGAIN = (
    "[tell it|tell me that|tell that story|say it] again [please|]",
    "[once more|the same story again|repeat the story|again please]",
)
_NEXT = (
    "[and then|and then what|then what|what happened next|what happened then|what happens "
    "next|continue|go on|keep going|more of it|and after that|what came next|how does it go on|"
    "and|carry on|don't stop|what happened after that] [?|please|]",
    "[what happened to|what became of] [{name}|them|{friend}] [then|next|after that|]?",
    "what did {name} do [next|then|after that]?",
)
_WHO = (
    "[who was|who is|what was|what is] the [hero|main character|animal] [called|of the story|"
    "again|]?",
    "[what was|what is] [his|her|its|the hero's|their] name [again|]?",
    "[who|what] was [it|the story|that] about?",
    "who was in [it|the story]?",
    "who was {name}?",
)
_FRIEND = (
    "[who|what] was {friend}?",
    "[what was|who was] the [name of the {kind}|{kind}]?",
    "what was the {kind} called?",
)
_MORAL = (
    "[what is|what's|what was] the [moral|message|lesson|point] [of the story|of it|]?",
    "[what does|what did] [it|the story|that] [mean|teach us|tell us]?",
    "[what can|what do] [we|I] learn from [it|this|that|the story]?",
    "[and the moral|moral|so what|the moral]?",
)
_TRUE = (
    "[is|was] [that|this|it|the story] [true|real|a true story|really true|made up]?",
    "did [that|this|it] really happen?",
    "[did you|have you] [write|make up|invent|made up] [that|this|it] [yourself|]?",
)
_LIKED = (
    "[nice|lovely|beautiful|great|good|cute|sweet|cool|funny|wonderful] [story|one|tale]",
    "[I liked|I like|I love|I loved|I enjoyed] [it|that|this|that story|the story]",
    "[that was|this was|what a] [a|] [nice|lovely|beautiful|great|good|cute|sweet] story",
)
_DISLIKED = (
    "[I did not like it|I didn't like it|I don't like it|boring|boring story|that was boring|bad "
    "story|that story is stupid|what a stupid story|that makes no sense|that was not funny|meh]",
)
_WHY = (
    "[why|why?|but why|but why?|why is that|how come|why did that happen]",
    "why did {name} do that?",
    "why was {name} [sad|happy|afraid|alone|there]?",
)


def follow(  # noqa: C901 - one case per kind of follow-up
    rng: random.Random, style: Style, told: Told, *, held_out: bool
) -> tuple[Turn, Told]:
    """Make an exchange that follows on the story `told`, and return the story told last."""
    cast = told.cast
    slots = {"name": style.value(cast.name), "friend": style.value(cast.friend), "kind": cast.kind}

    def said(asks: tuple[str, ...], answer: str, **more: str) -> Turn:
        user = typed(rng, style, rng.choice(asks), {**slots, **more})
        return exchange("story follow-up", user, answer, Expect(has=(has_word(answer.split()[0]),)))

    other = Told(_plot_for(rng, cast, told.plot), draw_cast(rng))
    match rng.randrange(20):
        case 0 | 1 | 2:
            return said(_ANOTHER, long_text(rng, other)), other
        case 3 | 4:
            wish, wished = _wished(rng, style, held_out=held_out)
            other = Told(_plot_for(rng, wished, told.plot), wished)
            return said(_OTHER_HERO, long_text(rng, other), hero=style.value(wish)), other
        case 5 | 6 | 7:
            return said(_SHORTER, short_text(rng, told)), told
        case 8:
            return said(_AGAIN, long_text(rng, told)), told
        case 9:
            answer = (
                f"After that, {cast.name} and {cast.friend} went home and had a good supper. The "
                "next morning a new adventure began, but that is another story."
            )
            return said(_NEXT, answer), told
        case 10:
            if rng.random() < 0.3:
                answer = f"{cast.friend} was the {cast.kind} in the story."
                return said(_FRIEND, answer), told
            return said(_WHO, f"The story was about {cast.hero} named {cast.name}."), told
        case 11:
            return said(_MORAL, f"The moral is: {told.plot.moral}."), told
        case 16:
            return said(_CHANGES, UNCHANGED), told
        case 17 | 18:
            return said(_DETAILS, NOT_SAID), told
        case 12:
            return said(_TRUE, "No, it is only a story. I made it up."), told
        case 13:
            return said(_LIKED, "Thank you! I am glad that you liked it."), told
        case 14:
            return said(
                _DISLIKED, "I am sorry that you did not like it. Ask me for another one."
            ), told
        case _:
            return said(_WHY, f"Because that is how the story goes: {told.plot.moral}."), told


_GO_ON = (
    "[please|now|ok,|sorry,|ok, now|] [go on|continue|carry on|keep going] [with the story|with "
    "it|] "
    "[please|]",
    "[please|] [go on|continue] [with the story|where you stopped|from there|from where you "
    "were|telling]",
    "[what happened next|and then|then what|what next|how does it go on|what happened then][?|]",
    "[sorry I interrupted|I interrupted you|where were we|where were you|sorry][,|.|?] [go "
    "on|please "
    "continue|continue] [with the story|]",
    "[finish|end] the story [please|]",
    "[tell me the rest|the rest please|and the rest|how does it end|how did it end][?|]",
    "go on with the story",
)
_MEANWHILE = (
    ("[wait|stop|hold on|one moment|stop there|wait a second]", "All right, I will wait."),
    ("[thanks|thank you|nice]", "You are welcome!"),
)


def interrupted(rng: random.Random, style: Style, turn: Turn) -> list[Turn]:
    """Have the user interrupt a story, and the model go on from what the user heard."""
    text = str(turn.messages[1]["content"])
    spaces = [at for at, letter in enumerate(text) if letter == " " and 12 < at < len(text) - 20]
    at = rng.choice(spaces)
    turns = [cut_short(turn, text[:at])]
    if rng.random() < 0.15:
        asks, answer = rng.choice(_MEANWHILE)
        user = typed(rng, style, asks)
        turns.append(exchange("story follow-up", user, answer, Expect()))
    user = typed(rng, style, rng.choice(_GO_ON))
    rest = text[at + 1 :]
    return [*turns, exchange("story follow-up", user, rest, Expect(has=("the end",)))]


def follow_short(rng: random.Random, style: Style, told: Told) -> Turn:
    """Make an exchange in which the user wants the whole story after a short one."""
    user = typed(rng, style, rng.choice(_LONGER))
    return exchange("story follow-up", user, long_text(rng, told), Expect(words_min=100))
