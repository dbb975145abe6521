"""Values that conversations are about, each either for training or held out for evaluation;
independent of wordings.

The spelling of a value alone determines whether the value is held out, so that no list has to be
kept in two copies.
"""

import functools
import random
import zlib
from collections.abc import Sequence


def listed(text: str) -> list[str]:
    """Split a text at its commas into items."""
    return [" ".join(item.split()) for item in text.split(",")]


NAMES = listed("""
Tom, Anna, Maria, John, Peter, Paul, Lucy, Emma, Olivia, Noah, Liam, Mia, Sophie, Jack, Harry,
George, Charlie, Oscar, Leo, Max, Felix, Hugo, Arthur, Theo, Oliver, Ethan, Lucas, Mason, Logan,
James, Daniel, Henry, Sebastian, Michael, David, Joseph, Carter, Owen, Wyatt, Samuel, Julia,
Clara, Nora, Ella, Grace, Chloe, Victoria, Riley, Aria, Lily, Zoe, Hannah, Layla, Ruby, Alice,
Eva, Sarah, Leah, Laura, Martha, Ingrid, Astrid, Sven, Lars, Erik, Bjorn, Olga, Ivan, Dmitri,
Natasha, Yuki, Kenji, Hiroshi, Sakura, Mei, Wei, Ling, Chen, Priya, Arjun, Ravi, Anita, Fatima,
Omar, Ali, Hassan, Layan, Amara, Kofi, Kwame, Zola, Thabo, Diego, Carlos, Juan, Pablo, Sofia,
Lucia, Elena, Marco, Luca, Giulia, Paolo, Pierre, Claire, Louis, Camille, Jürgen, Heidi, Klaus,
Greta, Fritz, Zoë, José, Łukasz, Agnieszka, Piotr, Kasia, Bob, Alex, Sam, Kim, Pat, Ben, Dan,
Ron, Meg, Beth, Kate, Nick, Rob, Steve, Bill, Fred, Ted, Ann, Sue, Joe, Ian, Neil, Colin, Fiona,
Angus, Sean, Niamh, Siobhan, Bruce, Linda, Karen, Susan, Debra, Marie, Rosa, Vera, Ida, Otto,
Emil, Finn, Jonas, Nils, Mila, Lena, Nina, Tina, Tim, Jim, Ken, Roy, Guy, Amy, Joy, Eve, Ada,
Mary, Jane, Mark, Luke, Adam, Seth, Noel, Carl, Kurt, Hans
""")

CITIES = """London|Paris|Berlin|Madrid|Rome|Vienna|Oslo|Leeds|Dublin|Prague|Warsaw|Lisbon|Porto
Athens|Helsinki|Stockholm|Copenhagen|Budapest|Zurich|Geneva|Munich|Hamburg|Cologne|Milan|Naples
Turin|Venice|Seville|Valencia|Bilbao|Lyon|Nice|Lille|Bordeaux|Ghent|Bruges|Utrecht|Rotterdam
Glasgow|Cardiff|Bristol|York|Bath|Oxford|Cambridge|Boston|Chicago|Denver|Dallas|Houston|Miami
Seattle|Portland|Austin|Atlanta|Detroit|New York|Los Angeles|San Diego|Toronto|Montreal|Ottawa
Calgary|Tokyo|Osaka|Kyoto|Seoul|Busan|Beijing|Shanghai|Hanoi|Bangkok|Manila|Jakarta|Delhi|Mumbai
Chennai|Lahore|Karachi|Dubai|Doha|Cairo|Tunis|Lagos|Accra|Nairobi|Lima|Quito|Bogota|Santiago
Cape Town|Sydney|Perth|Brisbane|Auckland|Bergen|Malmo|Tampere|Riga|Vilnius|Tallinn|Kiev|Sofia
Zagreb|Split|Graz|Linz|Salzburg|Basel|Bern|Reykjavik|Galway|Cork|Antwerp|Krakow|Gdansk|Brno
Ankara|Izmir|Rio|Havana|Phoenix|Memphis|Nashville|Buffalo|Reno|Tulsa|Omaha|Boise""".replace(
    "\n", "|"
).split("|")

COLOURS = """red|blue|green|yellow|orange|purple|pink|brown|black|white|grey|turquoise|violet
indigo|teal|magenta|crimson|gold|silver|beige|navy|olive|maroon|lilac|coral|amber|scarlet|ivory
cyan|lavender|mint|peach|dark blue|light green|bright red|sky blue""".replace("\n", "|").split("|")

FOODS = """pizza|pasta|sushi|curry|soup|salad|bread|cheese|rice|noodles|tacos|burgers|pancakes
waffles|chocolate|ice cream|apple pie|lasagna|risotto|paella|dumplings|ramen|falafel|hummus|stew
fish and chips|roast chicken|mashed potatoes|fried eggs|porridge|strawberries|mangoes|bananas
cherries|grapes|olives|tomato soup|garlic bread|carrot cake|cheesecake|steak|meatballs|omelette
gnocchi|pierogi|goulash|kebab|burritos|popcorn|peanut butter""".replace("\n", "|").split("|")

JOBS = """teacher|nurse|doctor|baker|farmer|driver|pilot|cook|chef|writer|painter|singer|dancer
plumber|carpenter|lawyer|dentist|gardener|librarian|mechanic|programmer|designer|waiter|tailor
butcher|florist|journalist|musician|photographer|scientist|sailor|soldier|student|cleaner|builder
barber|bus driver|truck driver|software developer|music teacher|taxi driver|postman|banker|vet
translator|actor|judge|miner|potter|weaver""".replace("\n", "|").split("|")

ANIMALS = """dog|cat|fox|bear|rabbit|horse|mouse|owl|wolf|turtle|frog|duck|lion|tiger|elephant
parrot|hamster|goldfish|pony|goat|sheep|cow|pig|hedgehog|squirrel|penguin|dolphin|whale|snail
spider|crow|robin|swan|beaver|otter|badger|donkey|camel|giraffe|zebra|monkey|panda|koala|lizard
snake|crab|seal|dragon""".replace("\n", "|").split("|")

HOBBIES = """chess|football|tennis|swimming|running|reading|painting|cooking|hiking|fishing
gardening|cycling|dancing|singing|knitting|sailing|skiing|climbing|photography|pottery|yoga
baking|camping|surfing|rowing|golf|cricket|rugby|judo|archery|origami|bird watching|drawing
playing the piano|playing the guitar|collecting stamps|board games""".replace("\n", "|").split("|")

DRINKS = """tea|coffee|water|milk|lemonade|orange juice|apple juice|cocoa|cola|green tea|cider
wine|beer|hot chocolate|ginger ale|mint tea|iced coffee|tomato juice""".replace("\n", "|").split(
    "|"
)

MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]

INSTRUMENTS = """piano|guitar|violin|flute|cello|drums|trumpet|harp|banjo|clarinet|saxophone
accordion|ukulele|trombone|oboe""".replace("\n", "|").split("|")

LANGUAGES = listed("""
English, Spanish, French, German, Italian, Polish, Dutch, Swedish, Danish, Finnish, Greek,
Turkish, Arabic, Hindi, Japanese, Korean, Chinese, Russian, Czech, Welsh, Irish, Basque
""")

NOUNS = listed("""
table, chair, window, door, garden, river, mountain, bridge, train, boat, car, bicycle, house,
kitchen, clock, mirror, lamp, candle, blanket, pillow, bottle, basket, hammer, ladder, rope,
wheel, engine, computer, phone, camera, radio, letter, book, paper, pencil, story, song,
picture, museum, church, school, hospital, market, station, airport, island, forest, desert,
beach, lake, ocean, cloud, storm, winter, summer, morning, evening, shadow, star, moon, planet,
rocket, robot, castle, king, queen, knight, wizard, pirate, treasure, map, key, box, bag, hat,
coat, shoe, glove, ring, button, needle, thread, apple, pear, plum, lemon, cherry, carrot,
onion, pepper, salt, sugar, honey, butter, bean, leaf, tree, flower, rose, grass, stone, sand,
gold, iron, glass, wood, wool, silk, engineer, atom, energy, gravity, light, sound, music,
science, history, economy, law, tax, bank, money, price, market, brain, heart, blood, bone,
muscle, cell, virus, vaccine
""")

ADJECTIVES = listed("""
big, small, old, new, red, blue, green, quiet, loud, bright, dark, warm, cold, soft, hard,
happy, sad, brave, shy, clever, kind, lazy, busy, empty, full, heavy, light, slow, fast, sweet,
sour, strange, famous, wooden, golden, silver, broken, hidden, lost, round, square, tall, short,
thin
""")

VERBS = listed("""
sees, likes, finds, carries, opens, paints, follows, hears, builds, keeps, brings, sells, buys,
watches, holds, breaks, mends, wants, needs, remembers, forgets, loves, moves, lifts, hides
""")

_ONSETS = listed("""
b, c, d, f, g, h, j, k, l, m, n, p, r, s, t, v, w, z, bl, br, ch, cl, cr, dr, fl, fr, gl, gr,
kl, kr, ph, pl, pr, qu, sh, sk, sl, sm, sn, sp, st, str, sw, th, tr, tw, vl, wr, y
""")
_VOWELS = listed("""
a, e, i, o, u, a, e, i, o, u, ai, ea, ee, oo, ou, ia, io, y, au, ei
""")
_CODAS = [
    "",
    "",
    "",
    "",
    *[
        "n",
        "r",
        "l",
        "s",
        "t",
        "m",
        "k",
        "d",
        "p",
        "x",
        "b",
        "g",
        "ck",
        "nd",
        "rt",
        "st",
        "ng",
        "ll",
        "ss",
        "sh",
        "th",
        "lt",
        "rn",
    ],
]


@functools.cache
def is_held_out(value: str) -> bool:
    """Whether a value is for evaluation and not for training; about one in seven is."""
    return zlib.crc32(value.lower().encode()) % 7 == 0


def choose(rng: random.Random, pool: Sequence[str], *, held_out: bool) -> str:
    """Draw a value of the pool, either from the held-out ones or from the others."""
    return rng.choice([value for value in pool if is_held_out(value) == held_out])


def _syllables(rng: random.Random, count: tuple[int, int]) -> str:
    parts = (rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(9))
    return "".join(list(parts)[: rng.randint(*count)])


def _scraps(rng: random.Random) -> str:
    """Join fragments of real words, to get tokens that do not occur in whole words."""
    word = ""
    for _ in range(rng.randint(1, 3)):
        source = rng.choice(rng.choice((NOUNS, ADJECTIVES, VERBS, NAMES, CITIES))).lower()
        begin = rng.randrange(max(1, len(source) - 2))
        word += source[begin : begin + rng.randint(2, 5)]
    return word.replace(" ", "")


def invent(rng: random.Random, syllables: tuple[int, int] = (1, 3), *, held_out: bool) -> str:
    """Invent a lower-case word of 3 to 14 letters.

    `syllables`: the least and the greatest number of syllables, unless the word is made of
    fragments of real words.
    """
    while True:
        word = _scraps(rng) if rng.random() < 0.35 else _syllables(rng, syllables)
        if 3 <= len(word) <= 14 and is_held_out(word) == held_out:
            return word


def number(rng: random.Random, low: int, high: int, *, held_out: bool) -> str:
    """Draw a number in digits, either held out or for training.

    About three in ten of those with several digits use at most two different digits.
    """
    while True:
        text = str(rng.randint(low, high))
        if len(text) > 1 and rng.random() < 0.3:
            few = rng.sample("0123456789", 2)
            text = str(int("".join(rng.choice(few) for _ in text)))
        if low <= int(text) <= high and is_held_out("n" + text) == held_out:
            return text
