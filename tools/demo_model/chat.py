"""Turns of small talk, about the model itself, and about subjects that the model does not know."""

import random

from tools.demo_model import values
from tools.demo_model.grammar import Style, opened, reply, typed
from tools.demo_model.intents import Intent
from tools.demo_model.turns import Expect, Turn, exchange

SMALL_TALK = (
    Intent(
        (
            "[hi|hello|hey|hiya|howdy|greetings|yo|hullo] [there||||everyone|friend|again|you|bot]",
            "[hi|hello|hey] [hi|hello|]",
            "[bonjour|hola|hallo|guten tag|ciao|salut|namaste|aloha|ola|hej|moin|servus]",
            "[good morning|good afternoon|good evening|good day|morning|evening] [to you||]",
            "[hi|hello], [good morning|good evening|nice to meet you|is anyone there?|are you "
            "there?]",
            "[are you|is anybody|is somebody|anyone|anybody|you] there?",
            "[hi|hello|hey] [world|my friend|buddy|mate|computer|model|demo|robot|dear]",
            "[good to see you|I am back|here I am|I just arrived|it is me]",
            "[hi|hello], [I am back|good to see you|here I am again]",
            "[hi|hello|hey] [hi|hey|hello|ho|everybody|all]",
            "[testing|test|ping|knock knock|hello hello|can you hear me?|does this work?]",
            "[hi|hello], [I am new here|this is my first time|can we talk?|I have a question]",
            "[can|could|may|shall] [we|I] [talk|chat|speak] [to you|with you|]?",
            "[let's|I want to|I would like to] [talk|chat|have a chat]",
        ),
        ("Hello! How can I help you?",),
        r"\b(hello|hi)\b",
    ),
    Intent(
        (
            "[hi|hello|hey||||], how are you [today|doing|doing today|this morning|feeling|]?",
            "[hi|hey||], how is it going [today|]?",
            "[hi|hey||], how's it going [today|]?",
            "how [do you feel|are you feeling] [today|now|]?",
            "how [is|was|has] your [day|morning|evening|week] [been|going|so far|]?",
            "are you [well|okay|all right|good|fine|happy] [today|]?",
            "you [okay|all right|good]?",
            "what's up [with you|today|]?",
            "[hi|hey|], how are things [with you|]?",
            "how have you been [lately|]?",
            "how do you do?",
            "[how is everything|how's everything|how is life|how is your mood|what's new] [with "
            "you|]?",
            "are you having a [good|nice] [day|time|morning]?",
            "[everything|all|is everything|is all] [fine|good|okay|well] [with you|]?",
            "[long time no see|good to see you], how are you?",
            "how are you [keeping|holding up|getting on] [today|]?",
            "[I hope you are well|tell me how you are]",
            "I am [fine|well|good|great], [and you?|how are you?|how about you?]",
        ),
        ("I am well, thank you. How are you?", "I am fine, thank you. And you?"),
        r"\b(well|fine)\b",
    ),
    Intent(
        (
            "[I am|I'm|I feel|feeling|doing|] [very||] [fine|well|good|great|okay|happy|wonderful] "
            "[today|], [thanks|thank you||]",
            "[I am|I'm] [doing|feeling] [fine|well|good|great] [too|today|]",
            "[I had|I have had|it was|today was] a [good|great|nice|wonderful|lovely] [day|week]",
            "[not bad|pretty good|all good|all is well|never better|could not be better]",
            "I am [so|very|really] [happy|excited|glad] [today|]",
            "[life is good|I slept well|I passed my exam|I won|it is my birthday|I am on holiday]",
            "[my day|today|the day|everything] [is|was|went|is going] [good|great|well|very "
            "well|fine]",
            "[I am|I'm] [well|fine|good|okay|great] [thanks|thank you|myself|as well]",
            "I [got|have] [good news|a new job|a present|a holiday] [today|]",
        ),
        ("I am glad to hear that.", "That is good to hear."),
        r"\b(glad|good)\b",
    ),
    Intent(
        (
            "[I am|I'm|I feel|feeling|] [very|so|a bit|really|] [sad|tired|ill|sick|bored|lonely|"
            "angry|stressed|bad|unhappy|hungry|cold|exhausted|upset|down] [today|now|]",
            "[I had|it was|today was] a [bad|hard|long|terrible|rough|difficult] [day|week|night]",
            "[not so good|not great|not well|bad|terrible|could be better]",
            "[I have|I got] [a headache|a cold|a problem|bad news|too much work]",
            "my [head|back|tooth|leg|arm|foot|throat|ear|knee] [hurts|aches|is sore]",
            "I [broke my arm|have a fever|failed my exam|feel awful|cannot sleep|slept badly|am "
            "in pain]",
            "[nobody likes me|everything is bad|life is hard|it is hard for me|I hate my job]",
            "[I am|I'm|I feel|feeling] "
            "[sad|tired|ill|sick|bored|lonely|angry|stressed|low|worried]",
            "I am [not happy|not well|not feeling well|having a bad day|having a hard time]",
            "I [miss|lost] my [friend|family|keys|job|phone]",
        ),
        ("I am sorry to hear that. I hope it gets better soon.",),
        r"\bsorry\b",
    ),
    Intent(
        (
            "[thanks|thank you|many thanks|thanks a lot|thank you very much|thank you so "
            "much|cheers|"
            "thanks again] [for your help|for that|my friend||||]",
            "[great|ok|okay|perfect|good|nice|wonderful|that helps], [thanks|thank you]",
            "[that was|this was|you were|you are] [very|really|] helpful [, thanks|, thank you|]",
            "I appreciate [it|that|your help]",
            "[ta|thanks so much|that is very kind|thank you, bot|thank you kindly|thanks, friend]",
            "[thanks|thank you] for [the story|the joke|the chat|your time|telling "
            "me|everything|this]",
        ),
        ("You are welcome!",),
        r"\bwelcome\b",
    ),
    Intent(
        (
            "[bye|goodbye|bye bye|see you|see you later|see you soon|see you tomorrow|farewell|"
            "good night|take care|later] [then|for now|my friend||||]",
            "I [have to|must|need to|should|am going to] [go|leave|sleep|go to bed] [now|]",
            "[ok|okay|thanks|thank you|that is all], [bye|goodbye|see you]",
            "[have|wish you] a [good|nice|great] [day|evening|night|weekend]",
            "[until|till] [next time|tomorrow|later]",
            "talk to you [later|soon|tomorrow]",
            "[I am off|I'm off|so long|ciao|I am leaving|talk later|quit|exit|I am done|cheerio]",
            "it was [nice|good|fun] [talking|to talk|chatting] [to|with] you",
            "[bye|goodbye|see you|good night] [now|everyone|bot|and thanks|sleep well|have a "
            "nice day]",
        ),
        ("Goodbye! It was nice to talk to you.",),
        r"\b(good)?bye\b",
    ),
    Intent(
        (
            "[you are|you're|you are so|that is|that was|this is] [very|really|so|] "
            "[good|great|nice|"
            "smart|clever|funny|kind|cool|sweet|amazing|awesome|wonderful|the best|impressive]",
            "[well done|good job|nice work|good work|great job|bravo|good bot|excellent|nice one]",
            "I [really||] [like|love] [you|this|that|talking to you]",
            "[that's|that is|that was] [right|correct|true|a good answer|a nice story|fun]",
            "you are [my friend|the best|a good bot|so clever|doing well|a star|great at this]",
            "[what a|such a] [good|nice|clever|great] [bot|answer|story|model]",
        ),
        ("Thank you, that is kind of you!",),
        r"\bthank",
    ),
    Intent(
        (
            "[you are|you're|that is|that was|this is] [very|really|so|] [bad|stupid|dumb|wrong|"
            "silly|slow|useless|boring|terrible|awful|not right|incorrect|annoying]",
            "I [do not|don't] [like|believe] [you|this|that]",
            "[that's|that is] [not right|not true|wrong|nonsense|not what I asked]",
            "[no|nope], [that is wrong|that is not right|you are wrong|wrong]",
            "I hate [you|this]",
            "you made a mistake",
        ),
        ("I am sorry. I am only a tiny demo model and make mistakes.",),
        r"\bsorry\b",
    ),
    Intent(
        (
            "[ok|okay|alright|fine|sure|cool|nice|great|good|I see|got it|understood|right|aha|oh|"
            "hm|hmm|wow|interesting|really?|yes|yeah|yep|yes please|of course|maybe|no|nope]",
            "[ok|okay|oh], [I see|good|fine|great|cool|got it]",
            "[haha|lol|hehe|ha ha|hahaha]",
            "I [see|understand|agree|think so|know]",
            "[stop|wait|cancel|enough|hold on|be quiet|one moment|next|continue|go on|shut up] "
            "[please|]",
            "[;)|😀|👍|😂|xd|^^|<3]",
            "[never mind|no problem|it is fine|that is fine|no worries|it does not matter]",
            "[that makes sense|makes sense|fair enough|sounds good|good to know]",
        ),
        ("All right. What would you like to talk about?",),
        r"\b(all right|like to)\b",
    ),
    Intent(
        (
            "[sorry|I am sorry|my apologies|excuse me|pardon|pardon me|oops|my mistake|my bad] "
            "[about that|for that||||]",
            "I [did not mean|didn't mean] [that|it]",
            "[please|] forgive me",
        ),
        ("No problem at all.",),
        r"\bno problem\b",
    ),
    Intent(
        (
            "[nice|good|pleased|great|lovely|glad] to [meet|see|know] you [too|]",
            "[it is|it's] [nice|good|a pleasure] to [meet|see] you",
        ),
        ("Nice to meet you too!",),
        r"\bnice to meet\b",
    ),
    Intent(
        (
            "what [can|could] you [do|help me with|help with|do for me] [for me|]?",
            "how can you help [me|]?",
            "what are [you able to do|your skills|your abilities|you good at|you good for]?",
            "[help|help me|I need help|can you help me?|please help|I need your help]",
            "what [do you know|should I ask you|can I ask you|can I ask|things can you do]?",
            "[what|how] [do|can] [we|I] [talk about|use you|start|try|do here]?",
            "[show|tell] me what you can do",
            "what else can you do?",
        ),
        (
            "I can chat a little, remember what you tell me, repeat, count, add small numbers, "
            "tell a short story and call a tool.",
        ),
        r"\bstory\b",
    ),
    Intent(
        (
            "what are you [doing|up to|thinking|thinking about] [now|right now|today|]?",
            "what do you [do all day|do for fun|like to do|do in your free time|want]?",
            "are you [busy|working|bored|lonely|tired|hungry|sleeping]?",
            "do you [sleep|eat|dream|get tired|get bored|ever rest|drink coffee]?",
            "do you [have|like|enjoy] [hobbies|music|your job|your work|free time|holidays]?",
        ),
        ("I am here and happy to talk with you.",),
        r"\bhappy to talk\b",
    ),
    Intent(
        (
            "[it is|it's|the weather is|what] [very|so|a|] [cold|hot|nice|lovely|rainy|sunny|windy|"
            "beautiful] [day|outside|today|weather|here] [today|]",
            "[I like|I love|I enjoy] [music|the sun|the rain|the "
            "sea|walking|sundays|summer|winter]",
            "[I am|I'm] [at home|at work|on the train|in bed|outside|drinking "
            "coffee|cooking|reading|"
            "eating lunch|watching a film|learning to code|waiting for a friend]",
            "[I|we] [went to|just came back from|am going to|will go to] [the shop|the park|work|"
            "school|the cinema|the beach|a party|the gym] [today|yesterday|]",
            "[I just|I] [woke up|got home|had lunch|had breakfast|made dinner|finished work]",
            "I [bought|saw|found|made|washed|painted|fixed|sold] [a|the|some] {noun} "
            "[today|yesterday|]",
            "[there is|I saw|we saw] a {adjective} {animal} [in the garden|on the "
            "way|outside|here]",
            "[the|this] {noun} [is|was|looks] {adjective} [today|here|now]",
            "I am [reading a book about {noun}s|cooking {food}|watching a film about {noun}s]",
            "[I|we] [will go|went|are going|travelled] to {city} [next week|last "
            "summer|yesterday|soon]",
            "[my friend|somebody|my neighbour] [bought|has|likes|found] a {adjective} {noun}",
            "[my day was|today was|it was] [okay|long|normal|quiet|busy|so so]",
            "[tomorrow|tonight|next week|later] [I|we] will [go out|cook|rest|travel|play a game]",
        ),
        ("I see. Thank you for telling me.",),
        r"\b(see|thank)\b",
    ),
)

IDENTITY = (
    Intent(
        (
            "[hi|hello|hey||||], who are you?",
            "[and|so|but|] [who|what] [are|exactly are|really are] you [exactly|really|then|]?",
            "[tell me|say|please tell me|can you tell me] [who|what] you are",
            "[introduce|describe|explain|present] yourself [please|]",
            "[tell me|say] [something|a bit|more|a little|] about yourself",
            "who am I [talking|speaking|chatting] [to|with]?",
            "what am I talking to?",
            "what [kind|sort|type] of [model|ai|bot|thing|program|machine|assistant] are you?",
            "[which|what] [model|ai|llm|bot|version|language model] [are you|is this|am I using]?",
            "[what is|what's] [this|your model|your model name]?",
            "who r u",
            "what r u",
            "who u",
            "who is this?",
            "are you [a|an] [model|ai|bot|robot|program|language model|assistant|machine|computer|"
            "chatbot|llm|real ai|demo|big model|large model|small model|toy]?",
            "[so|] you are [a|an] [ai|bot|robot|model|program|machine] [, right?|, aren't you?|?]",
            "[identify yourself|your name please|and your name?|you are who?|name yourself]",
            "[how should I|what do people|what should people|what do I] [address|call] you?",
            "[are you|you are] [new|intelligent|local|open source|clever|smart|powerful|any good]?",
            "[which|what] [version|kind of model|sort of bot] [is this|are you|do I use] [here|]?",
            "what do you consist of?",
            "[I do not know you|I don't know you|remind me], who are you?",
        ),
        ("I am a tiny demo model.", "I am a tiny demo model that comes with this server."),
        r"\btiny demo model\b",
    ),
    Intent(
        (
            "are you [a|] [human|real person|person|man|woman|boy|girl|real|alive|a human being|"
            "conscious|sentient|a living thing|somebody real]?",
            "am I [talking|speaking] to a [human|person|real person|robot|machine]?",
            "is [this|there] a [human|person|real person] [here|]?",
            "do you have [feelings|a body|a soul|a family|friends|parents|a brain|a "
            "heart|emotions]?",
            "are you [gpt|chatgpt|siri|alexa|claude|gemini|llama|gpt four|qwen|mistral|openai|"
            "deepseek|copilot|bard|a gpt]?",
            "you are [human|chatgpt|a person|gpt|real|alive], [right|aren't you|no]?",
            "is this [chatgpt|gpt|claude|gemini|a person|llama]?",
            "are you [like|as good as|the same as|better than|based on] [chatgpt|gpt|claude|a "
            "human|me]?",
            "[do you|can you] [feel|think|feel pain|love|cry|see me|hear me|have thoughts]?",
            "[is it a|is that a] [human|person|man|machine] [who answers|that answers|talking]?",
        ),
        ("No, I am a tiny demo model.",),
        r"\btiny demo model\b",
    ),
    Intent(
        (
            "who [made|built|created|trained|wrote|programmed|designed|developed|owns] you?",
            "who [is|are] your [maker|makers|creator|creators|developer|owner|boss|father|mother]?",
            "[where|when|how] were you [made|built|created|trained|born]?",
            "what were you trained on?",
            "how [do you work|does this work|did you learn this|do you think]?",
            "what company made you?",
            "[which|what] [company|team|lab|firm] [made|built|trained|do you belong to|is "
            "behind] you?",
            "[tell me|say] who [made|built|trained|created] you",
            "how [long did it take to train you|were you created|did they make you]?",
        ),
        ("I am a tiny demo model, trained from scratch for this server.",),
        r"\btiny demo model\b",
    ),
)

_TOPICS = (
    "{noun}",
    "{noun}s",
    "the {noun}",
    "a {noun}",
    "the {adjective} {noun}",
    "{odd}",
    "{name}",
    "{noun} and {noun2}",
    "{city}",
    "{adjective} {noun}s",
    "the {noun} of {city}",
    "my {noun}",
    "the first {noun}",
    "{animal}s",
    "{food}",
    "{language}",
    "{noun} {noun2}",
    "this {noun}",
    "{place}",
    "{person}",
)
COUNTRIES = values.listed("""
New South Wales, Scotland, Wales, Korea, South Korea, North Korea, Israel, Pakistan, Indonesia,
Malaysia, Colombia, Venezuela, Ecuador, Bolivia, Uruguay, Belgium, the Netherlands, Switzerland,
Croatia, Serbia, Bulgaria, Slovakia, Slovenia, Estonia, Latvia, Lithuania, Algeria, Tunisia, Libya,
Ethiopia, Ghana, Senegal, Tanzania, Uganda, Zimbabwe, Iraq, Syria, Jordan, Saudi Arabia, Qatar,
Nepal, Sri Lanka, Bangladesh, the Philippines, Singapore, Florida, Hawaii, Quebec, Bavaria,
Mongolia, Australia, Brazil, Canada, India, Egypt, Kenya, Peru, Mexico, Argentina, Turkey, Iran,
Thailand, Vietnam, Cuba, Chile, Finland, Denmark, Hungary, Romania, Ukraine, Nigeria, Morocco,
Iceland, Africa, Europe, Asia, Texas, California, the world, the United States, New Zealand, South
Africa
""")
_FAMOUS = values.listed("""
Einstein, Shakespeare, Napoleon, Mozart, Beethoven, Newton, Darwin, Caesar, Cleopatra, Gandhi,
Elvis, Picasso, Da Vinci, Marie Curie, Obama, Lincoln, Plato, Columbus, Messi, Ronaldo, Taylor
Swift, Batman, Harry Potter, Hamlet, the president, the pope, the queen, Elon Musk, Hitler, Tesla,
Bach, Galileo
""")

_EVERYDAY = values.listed("""
a tomato, coffee, chocolate, a volcano, the sun, the sea, gold, water, ice, a dog, a cat, cats,
dogs, fish, birds, bees, spiders, a shark, whales, dinosaurs, elephants, horses, trees, mushrooms,
wine, beer, milk, bread, cheese, rice, sugar, salt, meat, eggs, potatoes, bananas, pizza, the
moon, stars, mars, a black hole, an atom, electricity, a magnet, a computer, the internet, wifi,
python, linux, docker, an api, a websocket, a gpu, a token, a neural network, machine learning,
chatgpt, a phone, an iphone, android, a battery, a car, a plane, a train, a bike, a ship, a
rocket, football, tennis, chess, the olympics, the world cup, music, jazz, rock, a guitar, a
piano, a movie, star wars, the matrix, titanic, a book, the bible, a poem, art, love, death, time,
money, war, peace, god, happiness, sleep, dreams, a cold, a headache, the flu, cancer, a virus,
vitamins, a diet, sport, yoga, a marathon, school, university, math, history, physics, chemistry,
biology, english, german, spanish, latin, the alphabet, a verb, a noun, a triangle, a circle, a
square, pi, zero, infinity, christmas, easter, summer, winter, rain, snow, the wind, a rainbow,
climate change, an earthquake, a desert, the amazon, the nile, mount everest, the eiffel tower,
the pyramids, rome, london, new york, the roman empire, the first world war, the french
revolution, democracy, taxes, inflation, bitcoin, the stock market, a mortgage, a job interview, a
wedding, a baby, my boss, my wife, my car, my computer, a passport
""")

UNKNOWN = (
    "is {thing} [a fruit|a vegetable|an animal|a planet|alive|good for me|healthy|dangerous|real|"
    "expensive|safe|legal|edible|a colour|a country|important|hot|bigger than {thing2}]?",
    "[do|does|can|will|did] {thing} [sleep|eat|fly|swim|dream|die|grow|float|burn|break|think|"
    "bite|exist|work|hurt|help|cost much|have legs|have bones|have a name]?",
    "[are|is] {thing} [better|bigger|faster|smarter|older|healthier|cheaper] than {thing2}?",
    "[what is|what's|whats|what are|who invented|where is|where does] {thing} [from|come from|||]?",
    "[why|how|when|where] [is|are|do|does|did] {thing} [work|made|exist|happen|so big|called "
    "that|start|end|grow|sleep|live|important|dangerous]?",
    "how [big|old|long|tall|fast|hot|deep|far|heavy|much] is {thing}?",
    "how [long|often] [does it take to|should I|can I|do you] [eat|learn|build|cook|use|buy|clean] "
    "{thing}?",
    "how [many|much] [of|people like|people use|does] {thing} [cost|weigh|are there|]?",
    "[what|which] [happened to|is the best|is the biggest|is the fastest|kind of] {thing}?",
    "what [do|does|can|should] [I|you|people|one|we] [do with|need for|think about|know about|eat "
    "with|say about] {thing}?",
    "[tell me|teach me|explain] [about|something about|everything about|all about|how to use|the "
    "history of|] {thing} [please|]",
    "[what is|what's] the difference between {thing} and {thing2}?",
    "[can|could|should|may] I [eat|drink|buy|sell|mix|keep|learn|trust|use] {thing} [with "
    "{thing2}|]?",
    "[what is|what's|tell me|name|do you know] the capital [city|] of {place}[?|]",
    "[what is|what's|tell me|do you know] the [capital|population|flag|currency|president|biggest "
    "city|language] of [{place}|{odd}]?",
    "where [is|was|are|lies] {place}?",
    "who [is|was] [{person}|{name} {odd}]?",
    "who [wrote|painted|sang|composed|directed|built] [{thing}|{odd}|{person}]?",
    "when [did|was] {person} [die|born|live]?",
    "how old is {person}?",
    "what is the [name|number|colour|size|smell|taste|sound|shape] of {thing}?",
    "[what|which] [animal|food|drink|country|planet|language|person|river|mountain] [is the "
    "biggest|is the oldest|is red|is the fastest|lives longest|has no bones|starts with a]?",
    "[does|do|is|are] [everybody|people|children|all men|the french|the english|scientists] [like|"
    "know|afraid of|need|eat] {thing}?",
    "what [would|will] happen [if|when] {thing} [dies|breaks|explodes|disappears|is gone]?",
    "[is it true that|did you know that] {thing} [is|are|was] {adjective}?",
    "who [wrote|invented|discovered|painted|built|founded|won|owns|said|made|was|is|killed] "
    "{topic}?",
    "[what|what exactly] is {topic} [made of|about|called|used for|worth|good for|||||]?",
    "what [does|did|do|will] {topic} [mean|do|eat|cost|need|look like|say|want|happen to]?",
    "what is the [capital|population|price|size|meaning|history|name|weight|speed|colour|height|"
    "age|temperature|distance|formula|theory|cause|best thing] of {topic}?",
    "what are [the best|some|the main|the parts of|good|] {topic} [called||||]?",
    "[when|where|how|why] [was|is|did|does|were|are] {topic} [born|built|made|found|work|start|end|"
    "happen|invented|so {adjective}|fall|fly|]?",
    "how [much|many] {noun}s [are there|do I need|are|fit] in {topic}?",
    "how [big|far|old|tall|deep|long|heavy|fast|hot|expensive] is {topic}?",
    "how [do|can|should|would] [I|you|we|one] [make|build|fix|cook|clean|find|buy|sell|open|draw|"
    "learn|stop|install|grow|use|write] {topic}?",
    "why [do|does|is|are|did|can't] {topic} [{adjective}|work|exist|fall|matter|so {adjective}|]?",
    "[explain|describe|define|summarise|summarize|analyse|discuss] {topic} [to me|please|simply|]",
    "[do you know|have you heard of|can you explain|what do you know about|tell me about|"
    "what do you think about|do you like|teach me about|give me facts about] {topic} [please|]?",
    "which {noun} is the [best|biggest|oldest|smallest|{adjective}est] [in {city}|in the world|]?",
    "is {topic} [better|bigger|older|{adjective}er] than {topic2}?",
    "[is|are|was|can|does|will|should] {topic} {adjective}?",
    "what is the [difference|distance|relation] between {topic} and {topic2}?",
    "[can|could|will|would] you [drive|fix|sell|draw|buy|open|see|order|book|send|find|play] "
    "[me|] {topic}?",
    "[who|what] is the [president|king|queen|mayor|author|owner|leader|boss] of {topic}?",
    "[what|which] [year|day|month] [was|did|is] {topic} [end|begin|happen|]?",
    "[recommend|suggest] [me|] [a|some] {noun}[s|] [for|about] {topic}",
    "[solve|prove|compute|calculate] [the|this|] {topic} [equation|problem|]",
    "what [should|shall|could] I [eat|cook|do|wear|read|watch|buy|say|drink] "
    "[for|with|to|about] {topic}?",
    "[play|open|start|search for|show|find|send|order|buy|turn on|call|delete] {topic} "
    "[now|please|]",
    "[do|does|did] {topic} [like|have|need|want] {topic2}?",
    "name [three|five|two|some|ten] [famous|good|] {topic}",
    "I need [information|help|advice] [about|with|on] {topic}",
    "how do I get [from {city} to {topic}|to {city}]?",
    "[how come|since when|is it true that] {topic} [is|was|are] {adjective}?",
    "[who|what|where|when] [is|was] {name} {odd}?",
    "[find|count|sort|compare|calculate|draw|paint] [all|the|some] {noun}s [in {city}|of {topic}|]",
    "[what|which] [food|animal|language|song|book|film] [is|do they like] [best|typical] in "
    "{city}?",
    "[can|could] you [explain|tell me|show me] [how|why|when|where] {topic} [works|began|is]?",
    "{number} [people|{noun}s|years|days]?",
    "what [is|happened] [in|on|at] {number}?",
)

DO_NOT_KNOW = "I am only a tiny demo model, so I do not know that."


def intent_turn(
    rng: random.Random, style: Style, skill: str, intents: tuple[Intent, ...], *, held_out: bool
) -> Turn:
    """Make an exchange about one of the intents, drawn at random."""
    intent = rng.choice(intents)
    user = typed(
        rng, style, opened(rng, fill(rng, rng.choice(intent.asks), held_out=held_out), 0.05)
    )
    return exchange(
        skill, user, reply(rng, rng.choice(intent.replies)), Expect(has=(intent.accept,))
    )


def fill(rng: random.Random, pattern: str, *, held_out: bool) -> str:
    """Fill the slots of a pattern with random values, either held-out or training ones."""

    def one(pool: list[str]) -> str:
        return values.choose(rng, pool, held_out=held_out)

    def odd() -> str:
        return values.invent(rng, held_out=held_out)

    for topic in ("{topic}", "{topic2}"):
        pattern = pattern.replace(topic, rng.choice(_TOPICS))
    for thing in ("{thing}", "{thing2}"):
        pattern = pattern.replace(thing, rng.choice(_EVERYDAY))
    return pattern.format(
        noun=one(values.NOUNS),
        noun2=one(values.NOUNS),
        adjective=one(values.ADJECTIVES),
        odd=odd(),
        number=values.number(rng, 2, 2030, held_out=held_out),
        odd2=odd(),
        odd3=odd(),
        animal=one(values.ANIMALS),
        food=one(values.FOODS),
        name=rng.choice((one(values.NAMES), odd().capitalize())),
        city=rng.choice((one(values.CITIES), odd().capitalize())),
        language=one(values.LANGUAGES),
        place=rng.choice(COUNTRIES),
        person=rng.choice(_FAMOUS),
    )


def unknown_turn(rng: random.Random, style: Style, *, held_out: bool) -> Turn:
    """Make an exchange of one to three questions on any subject, to which the model answers that it
    does not know."""
    asked = rng.choice((1, 1, 1, 1, 1, 1, 1, 2, 3))
    patterns = (fill(rng, rng.choice(UNKNOWN), held_out=held_out) for _ in range(asked))
    user = " ".join(typed(rng, style, opened(rng, pattern)) for pattern in patterns)
    return exchange("unknown", user, DO_NOT_KNOW, Expect(has=("tiny demo model",)))


_JOKE_ASKS = (
    "[please|can you|could you|] tell me a [joke|funny joke|good joke|pun] [please|]",
    "[do you know|know|got|have you got|wanna tell me|tell us] [a joke|any jokes|a funny joke|some "
    "jokes]?",
    "[make me laugh|say something funny|I want to hear a joke|joke please|joke|a joke|a joke "
    "please|be "
    "funny|tell me something funny|jokes|I need a laugh]",
    "[tell me|do you know] a joke about [{noun}s|{animal}s|computers|robots|programmers|{topic}]",
)
JOKES = ("Why did the tiny model cross the road? To get to the other token.",) * 2 + (
    "Why was the tiny model never late? It always predicted the next token.",
    "What is a tiny model's favourite snack? A fresh token.",
    "Why did the robot go on holiday? It needed to recharge.",
    "Why was the computer cold? It had left its windows open.",
    "What do you call a sleeping dinosaur? A dino-snore.",
    "What is orange and sounds like a parrot? A carrot.",
)
_MORE_JOKES = (
    "[another|another one|one more|another joke|one more joke|a different one|a better one|tell me "
    "another|tell me another one|next|more|again|a new one|more jokes] [please|]",
    "[haha|lol|good one|nice|not funny|I know that one|boring|old joke][,|.] [another|another "
    "one|one "
    "more|next] [please|]",
    "[do you know|have you got|got] [another|another one|any more|more]?",
)


def joke_turns(rng: random.Random, style: Style, *, more: bool) -> list[Turn]:
    """Make an exchange about a joke and, if `more`, some about others."""
    asks, told, turns = _JOKE_ASKS, "", []
    while not turns or (more and len(turns) < 3):
        joke = rng.choice([joke for joke in JOKES if joke != told])
        if not turns:
            joke = JOKES[rng.randrange(4)]
        user = typed(rng, style, opened(rng, fill(rng, rng.choice(asks), held_out=False), 0.1))
        turns.append(exchange("joke", user, joke, Expect(has=(r"[.?]",))))
        told, asks = joke, _MORE_JOKES
        more = more and (len(turns) == 1 or rng.random() < 0.4)
    return turns


_FINE = (
    "[I am|I'm|im||] [fine|good|great|okay|well|very well|not bad|all good|also fine|fine too|good "
    "too|"
    "pretty good|doing great|ok] [thanks|thank you|||]",
    "[good|fine|well|great|ok|okay|same here|me too|all good]",
)
_NOT_FINE = (
    "[I am|I'm|im||] [not so good|not well|sad|tired|bad|so so|ill|sick|a bit down|not "
    "great|terrible]",
    "[bad|not good|so so|meh|tired|could be better]",
)


def how_are_you_turns(rng: random.Random, style: Style) -> list[Turn]:
    """Make an exchange about how the model is, and one about how the user is."""
    intent = SMALL_TALK[1]
    user = typed(rng, style, fill(rng, rng.choice(intent.asks[:6]), held_out=False))
    first = exchange("small talk", user, intent.replies[0], Expect(has=(intent.accept,)))
    fine = rng.random() < 0.6
    user = typed(rng, style, rng.choice(_FINE if fine else _NOT_FINE))
    answer = SMALL_TALK[2 if fine else 3].replies[0]
    return [first, exchange("small talk", user, answer, Expect(has=("hear that",)))]
