"""The plots of the model's stories, in our own words.

The slots of a plot: ``{H}`` is the hero with an article and ``{N}`` the hero's name; ``{he}``,
``{He}``, ``{his}`` and ``{him}`` are the hero's pronouns; ``{K}`` is the kind of the friend whose
name is ``{F}``; ``{P}`` says where the hero lives. Choices are in square brackets, see grammar.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plot:
    """A story of a hundred words or more, the same story in few words, and its moral.

    ``opening`` is the first sentence of the long story, after which a sentence about a topic that
    the user named may stand.
    """

    opening: str
    body: str
    short: str
    moral: str


PLOTS = (
    Plot(
        "Once upon a time there was {H} named {N}, who lived {P}.",
        "The thing {N} loved most in all the world was a little silver bell. "
        "But one windy night the bell was gone. {N} looked in the garden, on the roof and in every "
        "corner of the house, and found nothing. Sad and tired, {he} sat down on a stone. "
        'Just then a {K} named {F} came along the path. "Why are you so sad?" asked {F}. "I have '
        'lost my bell," said {N}. "Then let us look for it together," said {F}, "for four eyes see '
        'more than two." They walked all day over the fields and asked everyone they met. At last, '
        "just before the sun went down, they found the bell inside a hollow log. {N} rang it all "
        "the way home, and from that day on the two were the best of friends. The end.",
        "{H} named {N} lost a silver bell. A {K} named {F} helped to look for it, and they found "
        "it in a hollow log. They have been friends ever since. The end.",
        "four eyes see more than two",
    ),
    Plot(
        "{H} named {N} was the slowest runner {P}.",
        "Every summer there was a great race around the lake, and every summer {N} came in last. "
        'This year a fast {K} named {F} laughed and said: "Stay at home, or we will still be '
        'waiting at midnight!" But {N} only smiled and stood at the line with the others. Off they '
        "went. Halfway round, {F} jumped over a fence, slipped and fell into a deep ditch. All the "
        "others ran past, for nobody wanted to lose. Only {N} stopped, found a long branch and "
        "pulled {F} out of the mud. They walked the rest of the way side by side, and they came in "
        "last together. Yet the crowd cheered louder for those two than for the winner. The end.",
        "{H} named {N} was the slowest in the race, but the only one who stopped to help when {F} "
        "fell into a ditch. They came in last, and everybody cheered for them. The end.",
        "kindness is worth more than winning",
    ),
    Plot(
        "On a rock in the cold sea stood a lighthouse, and in it lived {H} named {N}.",
        "Each evening {N} climbed two hundred steps to light the great lamp. One night, in the "
        "worst storm of the year, the lamp went out. The oil was gone, and far away a small ship "
        "was coming straight towards the rocks. What could {he} do? {N} ran down to the kitchen, "
        "took every pot and pan, ran up again and beat them together as loudly as thunder. Boom, "
        "bang, boom! On the ship, a {K} named {F} heard the noise and turned the wheel just in "
        "time. In the morning the ship lay safe in the harbour. {F} came with a present: a barrel "
        'of oil and a golden spoon. "For the best drummer on the coast," said {F}. The end.',
        "When the lamp of the lighthouse went out in a storm, {H} named {N} beat pots and pans so "
        "loudly that {F} heard the noise and saved the ship. The end.",
        "there is always another way to help",
    ),
    Plot(
        "{H} named {N} had a tiny bakery {P}.",
        "One morning the queen herself sent a letter: she wanted a cake for her birthday, and it "
        "had to be the best cake in the land. {N} worked the whole night. But in the dark {he} "
        "took "
        "the wrong jar and put in salt instead of sugar! When the cake stood on the royal table, "
        "the queen took one bite and made a terrible face. Everybody was silent. Then her cook, a "
        '{K} named {F}, whispered: "Your soup needed salt anyway." So they dropped the cake into '
        "the soup, and the soup became so good that the guests asked for a second plate, and a "
        "third. Since that day, salty birthday cake soup is served at every party, and {N} is a "
        "famous cook. The end.",
        "{H} named {N} baked a cake for the queen, but with salt instead of sugar. They dropped it "
        "into the soup, and it was the best soup ever. The end.",
        "even a mistake can turn out well",
    ),
    Plot(
        "One clear night {H} named {N} looked into the well and got a fright.",
        '"The moon has fallen into the water!" {he} cried. "We must save it before it drowns!" {N} '
        "ran through the whole village and woke everybody up. They came with ropes, hooks and "
        "buckets. A strong {K} named {F} threw a hook into the well and pulled. The hook had "
        "caught "
        "on a stone, so they all pulled together, harder and harder, until the rope broke and they "
        "fell on their backs in a great heap. And what did they see up there, between the stars? "
        'The moon, round and bright, back in its place. "We did it!" shouted {N}. {F} wanted to '
        "explain, but then only laughed. They danced around the well until morning, and the moon "
        "watched them. The end.",
        "{H} named {N} saw the moon in the well and thought that it had fallen in. They pulled so "
        "hard that they fell over, looked up and saw it in the sky again. The end.",
        "look up before you worry",
    ),
    Plot(
        "High above a river there was a bridge so narrow that only one could cross at a time.",
        "One day {H} named {N} met a {K} named {F} right in the middle of it. "
        '"Go back, I was here first," said {N}. "No, you go back," said {F}. So they stood there. '
        "They stood through lunch and they stood through supper. It began to rain, and neither of "
        'them moved. At midnight {N} became hungry and took out a piece of bread. "That smells '
        'good," said {F} quietly. {N} thought for a while, broke the bread in two and gave away '
        'half. "Where are you going, anyway?" {he} asked. "To the market," said {F}. "To buy '
        'bread." Then both of them laughed so hard that the bridge shook. They went back together '
        "and ate a warm breakfast. The end.",
        "{H} named {N} and a {K} named {F} met on a narrow bridge, and nobody would go back. At "
        "midnight they shared some bread, laughed and went home together. The end.",
        "sharing solves more than arguing",
    ),
    Plot(
        "{H} named {N} found a small black seed on the road and planted it {P}.",
        "In the morning there was a green leaf. By noon the plant was as tall as a door, and in "
        "the "
        'evening it covered the roof. "Stop!" said {N}, but the plant did not listen. After a week '
        "a pumpkin hung over the street, bigger than the church. The neighbours were afraid. "
        '"What if it falls on us?" they asked. Then a clever {K} named {F} had an idea. They built '
        "a slide of wood, cut the stem, and the pumpkin rolled slowly down the hill into the "
        "meadow. All winter long, everybody had pumpkin soup, pumpkin bread and pumpkin pie. And "
        "in "
        "the empty shell {N} and {F} opened a school, with round windows and an orange light "
        "inside. The end.",
        "{H} named {N} planted a small seed, and a pumpkin grew that was bigger than a church. The "
        "whole village ate it all winter and made a school of the shell. The end.",
        "small things can grow very big",
    ),
    Plot(
        "Detective {N}, {H} with a brown hat, had never lost a case.",
        "One Monday all the buttons in town were gone: the buttons of coats, of shirts, even of "
        "the "
        'mayor\'s trousers. "This is serious," said {N}, and took out a magnifying glass. On the '
        "ground {he} saw a long blue thread. {N} followed it under a fence, past the school and up "
        "an old tower. At the top sat a {K} named {F} in the middle of a shining heap of buttons. "
        '"I only wanted something that looks like the stars," said {F}, and began to cry. {N} sat '
        'down. "Buttons belong on coats," {he} said, "but I can show you the real stars." That '
        "night the two of them brought every button back. Then they lay on the roof and counted "
        "stars. The case was closed. The end.",
        "All the buttons in town were gone. Detective {N}, {H} with a brown hat, followed a blue "
        "thread and found {F}, who only wanted something like stars. They brought them back. The "
        "end.",
        "ask why before you judge",
    ),
    Plot(
        "All the others could climb, jump and swim, but {H} named {N} was afraid of heights.",
        'Even a chair was too high. "I am happy down here," {he} always said. One morning a cry '
        "came "
        "from the old pine tree. A little {K} named {F} sat on the highest branch and could not "
        "get "
        "down, and there was nobody else to help. {N} looked up and became quite dizzy. Then {he} "
        'closed one eye and said: "I will go one branch high. Only one." After that, {he} said it '
        "again. One more branch, and one more, and suddenly {N} was at the top. {F} held on tight, "
        "and together they climbed down. When they reached the grass, {N} looked back and could "
        "not "
        'believe it. "How did you do that?" asked {F}. "One branch at a time," said {N}. The end.',
        "{H} named {N} was afraid of heights, until {F} sat in a tree and could not get down. {N} "
        "climbed up one branch at a time and saved the little {K}. The end.",
        "take one step at a time",
    ),
    Plot(
        "{H} named {N} was a great inventor, and nothing {he} built ever worked.",
        "The flying umbrella sank. The singing shoes only coughed. One day {N} finished a machine "
        "that should make soup. {He} pulled the handle, the machine shook and whistled, and out "
        "came bubbles. Not one, but thousands! They filled the house, floated out of the window "
        "and "
        "over the town. {N} was ashamed and wanted to hide. But in the street stood a sad {K} "
        "named "
        "{F}, who had not smiled for a year. A bubble landed on {F}'s nose and burst: plop. {F} "
        'began to giggle, then to laugh, and soon the whole street laughed with them. "That is the '
        'best machine in the world," said {F}. Now there is a bubble day every year, and {N} is '
        "working on a flying sofa. The end.",
        "{H} named {N} built a machine for soup, but it made bubbles. They flew over the town and "
        "made everybody laugh, even sad {F}. The end.",
        "what goes wrong can still bring joy",
    ),
    Plot(
        "On the beach {H} named {N} found a green bottle with a letter inside.",
        '"To whoever finds this," it said. "I live on an island and have nobody to play with. '
        '{F}." '
        "{N} read it three times. Then {he} wrote an answer, put it into the bottle and threw it "
        "back into the waves. Weeks passed. Every day {N} went to the beach and looked. When "
        "winter "
        "came, the bottle came too, with a new letter and a drawing of a {K} under a palm tree. So "
        "they wrote to each other, one letter every season, for many years. One spring there was "
        "no "
        "bottle. {N} was very sad. But then a little boat came over the sea, and in it sat {F} "
        "with "
        'a big smile. "I thought I would bring the letter myself," said {F}. The end.',
        "{H} named {N} found a letter in a bottle from a lonely {K} named {F}. They wrote to each "
        "other for years, until one day {F} came in a boat. The end.",
        "a friend can be far away",
    ),
    Plot(
        "In the garden {H} named {N} built a rocket out of boxes, tape and an old kettle.",
        '"Three, two, one, go!" shouted {N}, and to everyone\'s surprise, it really flew. Up it '
        "went, past the clouds and past the stars, and landed softly on the moon. There sat a {K} "
        'named {F} on a suitcase. "Finally," said {F}. "The last bus left a hundred years ago." '
        "{N} "
        "unpacked some sandwiches, and they had a picnic and looked at the blue Earth. They jumped "
        "over craters as high as houses and drew a smile in the dust. Then it was time to go home. "
        "There was room for two, if they held the kettle on their knees. If you look closely on a "
        "clear night, you can still see the smile on the moon. The end.",
        "{H} named {N} built a rocket out of boxes and flew to the moon. There {he} met {F}, who "
        "had "
        "missed the last bus, and they flew home together. The end.",
        "you only have to try",
    ),
    Plot(
        "For years {H} named {N} had walked over the same soft hill on the way to school.",
        'One day {he} tripped, and the hill said: "Ouch." {N} stood quite still. Two eyes opened '
        "in "
        'the grass, as big as ponds. "I am a giant," said the hill. "I lay down for a nap, and '
        "then "
        'somebody planted trees on me. If I get up now, I will break everything." Day after day '
        "{N} "
        "came back to tell the giant what happened in the world. A {K} named {F} came too, and "
        "soon "
        "the whole school sat on the hill and told stories. In return, the giant breathed out warm "
        "air in winter, so that there were always flowers there, even in the snow. And when "
        "somebody "
        "fell asleep, the hill moved a little and rocked them gently. The end.",
        "{H} named {N} found out that the hill behind the school was a sleeping giant. The "
        "children "
        "told it stories, and it kept them warm in winter. The end.",
        "listen closely, and the world will speak",
    ),
    Plot(
        "Nobody sang as badly as {N}, {H} who lived {P}.",
        "Windows closed when {he} began, and the milk turned sour. The choir sent {N} away. "
        '"Perhaps you could just move your lips," they said kindly. Then one evening, while '
        "everybody was at the concert, a fire started in the mill. Only {N} stood outside and saw "
        "it. There was no bell and no time to lose. {N} took a deep breath and sang the highest, "
        "loudest, most awful note of all. In the hall the glasses broke, and everyone ran out to "
        "complain. Then they saw the smoke. With buckets from hand to hand they put the fire out. "
        'The leader of the choir, a {K} named {F}, bowed deeply. "We need a voice like that," said '
        "{F}. Now {N} sings the alarm. The end.",
        "{H} named {N} sang so badly that the choir did not want {him}. But when the mill burned, "
        "that awful voice woke everybody and saved the village. The end.",
        "every voice is good for something",
    ),
    Plot(
        "It was the hardest winter that anybody could remember, and {H} named {N} had only one bag "
        "of nuts left.",
        "One evening there was a knock at the door. Outside in the snow stood a thin old {K} named "
        '{F}. "May I warm my feet?" asked {F}. {N} opened the door wide, put wood on the fire and '
        "shared the nuts: one for you, one for me. They stayed together until the last nut was "
        "gone. In the morning {F} had left, without a word. {N} was hungry, but not sorry. At last "
        "the snow melted, and when {N} stepped outside, there were young trees all around the "
        "house, in a perfect ring. {F} had planted half of the nuts. Today it is the finest nut "
        "wood in the country, and the door of the house is never locked. The end.",
        "In a hard winter {H} named {N} shared the last nuts with an old {K} named {F}. In spring "
        "a "
        "ring of nut trees grew around the house. The end.",
        "what you share comes back",
    ),
    Plot(
        "While cleaning an old teapot, {H} named {N} heard a sneeze, and a very small ghost came "
        "out.",
        '"Three wishes, please be quick," said the ghost, whose name was {F}. {N} did not think '
        "for "
        'long. "I wish I had a sausage," {he} said, and there it was. "What a silly wish!" cried '
        "{N}'s neighbour, a {K}, through the window. {N} became angry. \"I wish that sausage were "
        "on "
        'your nose!" And there it hung. They pulled and pulled, but it would not come off. There '
        'was one wish left. Gold? A castle? {N} looked at the poor neighbour and sighed. "I wish '
        "the "
        'sausage were on a plate, with mustard." So the three of them sat down, {N}, the neighbour '
        "and the small ghost, and had a very good supper. The end.",
        "{H} named {N} had three wishes from a small ghost. The first was a sausage, the second "
        "put "
        "it on the neighbour's nose, and the third put it on a plate. They ate it together. The "
        "end.",
        "be careful what you wish for",
    ),
    Plot(
        "The big clock of the town stopped at ten past four, and nobody knew why.",
        'Without it, the baker baked at midnight and the children went to school on Sunday. "I '
        "will "
        'have a look," said {N}, {H} who was small enough to crawl between the wheels. It was dark '
        "inside and smelled of oil. Behind the largest wheel {he} heard a soft sound. There, in a "
        "nest of wool, slept a {K} named {F} with four babies. One of them had put a foot between "
        "the wheels. {N} could have chased them away. Instead {he} thought about it all night and "
        "then built a little house on the roof, with a view of the river. The family moved in, the "
        "clock went tick and tock again, and at ten past four each day it now rings once more, "
        "just "
        "for them. The end.",
        "The town clock stopped. {H} named {N} crawled inside, found {F} with four babies asleep "
        "between the wheels, and built them a house on the roof. The end.",
        "there is room for everybody",
    ),
    Plot(
        "Captain {N}, {H} with a wooden sword, sailed the seven seas with a map that nobody could "
        "read.",
        "There was a red cross on it, and a red cross means treasure. The only sailor on board was "
        "a {K} named {F}, who was seasick every day. They sailed through fog and ice, they were "
        "chased by a whale, and they ate nothing but beans. At last they found the island. They "
        "dug "
        "a deep hole under the palm tree, and there was the chest! Inside lay no gold and no "
        "silver. "
        'It was full of books. "What a pity," said {F}. But {N} opened one and began to read '
        "aloud, "
        "and they forgot to eat, and they forgot to be seasick. It took them a hundred nights to "
        "read them all. On the way home they agreed: no pirate had ever been richer. The end.",
        "Captain {N}, {H} with a wooden sword, looked for treasure with {F}. In the chest they "
        "found "
        "books, read for a hundred nights and felt rich. The end.",
        "the best treasure is not made of gold",
    ),
    Plot(
        "{H} named {N} bought a box of paint from a stranger at the market.",
        "At home {he} painted an apple on the wall. It looked so real that {he} touched it, and it "
        "fell into {his} hand. Whatever {N} painted came to life! First {he} painted a cake, then "
        "a "
        'soft bed, then a swing. "Paint me a mountain of gold," said the greedy mayor. But {N} had '
        "only a little paint left, and behind the mayor stood a {K} named {F}, cold and wet, "
        "without "
        'a home. "I am sorry," said {N} to the mayor, and painted a small house with a red roof '
        "and "
        "smoke over the chimney. {F} opened the door and went in. The paint was gone, and {N} was "
        'not sad at all. "Come in," called {F}, "the tea is ready." The end.',
        "{H} named {N} had paint that made everything real. The mayor wanted gold, but {N} used "
        "the "
        "last drop to paint a house for poor {F}. The end.",
        "use what you have for those who need it",
    ),
    Plot(
        "Every night at twelve a train without a driver stopped {P}, and one night {H} named {N} "
        "got "
        "on.",
        '"Tickets, please," said the conductor, a {K} named {F}. "I have none," said {N}. "Then '
        "tell "
        'me something you have lost." {N} thought. "My blue kite, when I was little." The train '
        "stopped at once, and there it hung in a tree: the blue kite. At the next stations people "
        "found umbrellas, left gloves, an old song. A grandmother found her way home. All night "
        "they "
        "drove through the Land of Lost Things, and the windows shone like gold. When the sun "
        "rose, "
        "{N} stood at the station again with the kite under {his} arm, and thought it had been a "
        "dream. But on the string hung a small paper ticket: good for one more ride. The end.",
        "{H} named {N} took the night train to the Land of Lost Things and found an old blue kite "
        "there. In the morning there was a ticket on its string. The end.",
        "nothing is lost for ever",
    ),
    Plot(
        "There was once a king who could not laugh, and he promised a crown to anyone who could "
        "change that.",
        "Jokers came, and dancers, and a {K} named {F} who could juggle nine eggs. The king only "
        'yawned. Then {H} named {N} walked in by accident. "Excuse me," said {N}, "is this the '
        "post "
        'office?" Nobody answered. {N} bowed, stepped on the carpet, slipped, and fell against the '
        "juggler. One egg flew up. It turned in the air, slowly, and landed right on the king's "
        "nose. The whole hall held its breath. The yellow ran down the royal beard. Then the king "
        "made a strange noise, like a door that needs oil, and it became louder, and he was "
        'laughing! "The crown is yours," he said with tears in his eyes. "Thank you," said {N}, '
        '"but I only need a stamp." The end.',
        "A king could not laugh. Then {H} named {N} came in by accident, slipped, and an egg "
        "landed "
        "on the king's nose. He laughed, and all that {N} wanted was a stamp. The end.",
        "laughter comes when you least expect it",
    ),
    Plot(
        "{H} named {N} was so shy that {he} whispered even when nobody was near.",
        "When the school put on a play, {N} asked for the smallest part and became a tree. A tree "
        "does not have to speak. On the great evening all the seats were taken. The star of the "
        "play, a proud {K} named {F}, stepped forward, took a deep breath and forgot every word. "
        "It "
        'was terribly quiet. Then the tree whispered: "The dragon has stolen the sun." {F} said it '
        "aloud. The tree whispered the next line, and the next, for {N} had learned the whole play "
        "by "
        "heart at home. When it was over, the people clapped for a long time. {F} went back, took "
        "the "
        'tree by a branch and pulled it to the front. "This tree saved us," said {F}. And {N} '
        "bowed, "
        'and for the first time spoke out loud: "Thank you." The end.',
        "{H} named {N} was very shy and played a tree. When the star of the play forgot the words, "
        "the tree whispered every line and saved the evening. The end.",
        "quiet ones can be heroes, too",
    ),
    Plot(
        "Deep in the mountain something was roaring, and everybody {P} was afraid.",
        '"It is a monster," they said. "Somebody must go." Nobody wanted to, so {H} named {N} took '
        "a "
        "lamp and went. The cave was hot and full of smoke. At the end of it lay a huge monster "
        "and "
        'held its cheek. "Go away," it cried, "or I will eat you! Ow!" {N} came closer and lifted '
        'the lamp. "Open your mouth, please," {he} said. There, in the last row, sat a black '
        "tooth. "
        '{N} tied a rope around it, and tied the other end to a rock. "Look, a {K}!" said {N}, and '
        "pushed the rock over the edge. Plop, the tooth was out. The monster, whose name was {F}, "
        "cried with happiness. Now it heats the water for the whole village. The end.",
        "Everybody was afraid of the monster in the mountain, but {H} named {N} found out that it "
        "only had a bad tooth and pulled it out. Now it heats the village's water. The end.",
        "whoever roars may be in pain",
    ),
    Plot(
        "One summer the river dried up, and {H} named {N} went upstream to find out why.",
        "The way was long and dusty. After two days {he} came to a wall of branches and mud. On "
        "top "
        'stood a {K} named {F} with a hammer. "Stop!" said {N}. "You have taken our water!" {F} '
        "was "
        'surprised. "I did not know that anybody lived down there. I only wanted a pond for my '
        'children." They could have fought, but it was too hot for that. So they sat down in the '
        "shade and drew lines in the sand. In the end they built a gate with a wheel: in the "
        "morning "
        "the water stayed in the pond, in the evening it ran down to the valley. And because the "
        "wheel turned, it could grind corn, too. Both sides had more than before. The end.",
        "The river was dry because {F} had built a dam. {H} named {N} did not fight, but helped to "
        "build a gate, and then there was water for everybody. The end.",
        "talk first, and both can win",
    ),
    Plot(
        "At the fair {H} named {N} bought the biggest balloon of all, a red one.",
        "A gust of wind came, and before {he} could let go, {N} was flying! The roofs became "
        "small, "
        'the cows looked like ants. A {K} named {F} flew along for a while. "Are you a bird?" '
        "asked "
        '{F}. "No," said {N}, "I am a mistake." They passed over a school, and all the children '
        "waved. They passed over a prison, and a man smiled for the first time in years. In the "
        'evening {N} grew tired. "How do I get down?" {he} asked. {F} thought and made a tiny hole '
        "with a thorn. Pfff! Slowly, slowly, the balloon came down and landed in {N}'s own garden, "
        'right on the washing. "Was it nice?" asked {his} mother. "Yes," said {N}, "but next time '
        "I "
        'will take a sandwich." The end.',
        "{H} named {N} held a red balloon so tightly that the wind carried {him} away. In the "
        "evening "
        "{F} made a small hole in it, and they landed in the garden. The end.",
        "some adventures start by accident",
    ),
    Plot(
        "Nobody had entered the old house for fifty years, until {H} named {N} lost a ball there.",
        "The door creaked. It was dark, and from above came steps: tap, tap, tap. {N}'s heart beat "
        'like a drum. "Who is there?" {he} called. "Who is there?" said a voice. A white shape '
        "came "
        "down the stairs, slowly, step by step. {N} wanted to run, but {his} feet would not move. "
        'Then the shape stopped and trembled. "Please do not hurt me," it said. Under the white '
        "sheet "
        "was a little {K} named {F}, who had come in to look for a cat and had been hiding all day "
        'because of the strange noises. "The noises were me," said {N}. "And you were my ghost." '
        "They held hands and walked out into the sun, and the cat sat on the ball and waited. The "
        "end.",
        "In an old dark house {H} named {N} met a white ghost. But it was only {F} under a sheet, "
        "who was just as afraid. The end.",
        "the dark is full of others who are afraid",
    ),
)
