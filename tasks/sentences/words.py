"""The words of the problems, the worked examples, and the closed classes of words that the rules name."""

from __future__ import annotations

WORDS = """
brother sister mother father friend teacher doctor farmer child baby king queen neighbor uncle aunt boy girl woman man
student cousin sailor soldier singer dancer painter baker driver pilot nurse
mountain forest ocean beach island desert valley lake cloud rain snow storm wind sun moon star sky flower tree grass
leaf garden field stone sand fire shadow rainbow hill
dog cat horse bird fish cow sheep lion tiger bear wolf rabbit mouse elephant monkey duck bee butterfly snake frog spider
house window kitchen table chair bed lamp clock mirror roof wall stairs blanket pillow key box bottle cup plate
spoon knife basket candle carpet
street bridge school hospital library market church museum park shop office hotel restaurant village city road
tower castle farm
book letter pen paper picture camera phone computer radio television bicycle car bus boat ship plane ticket map bag
hat coat shoe shirt dress ring watch umbrella money gift toy ball game guitar piano drum song music dance movie story
poem newspaper
bread cheese apple banana orange lemon cake cookie chocolate sugar salt soup rice egg milk coffee tea water juice
breakfast dinner lunch pizza honey
morning evening night summer winter spring autumn birthday holiday weekend
dream idea question answer secret problem promise lesson journey adventure memory smile voice heart hand
walk run swim sing laugh cry sleep eat drink cook read write draw build clean open close buy sell find lose give help
learn listen speak travel climb jump wait
sad angry tired hungry brave quiet loud fast slow hot cold warm wet dry dark bright old young new small large
heavy soft hard sweet strong weak beautiful strange empty
"""

# Eight for each number of words; the given word is marked, and in no problem
SENTENCES = """
Our *train* left.
The *door* opened.
The *river* froze.
He likes *pepper*.
That was *funny*.
She plays *hockey*.
We saw *lightning*.
The *engine* stopped.

We visited a *zoo*.
The happy *clown* danced.
My *grandmother* is kind.
The *station* was closed.
He lost his *wallet*.
They painted our *fence*.
A *train* passed by.
Nobody heard the *thunder*.

His *grandmother* lives in Spain.
The *river* is very deep.
A *tailor* made this suit.
She forgot her *gloves* again.
*pepper* makes the stew better.
We watched the *funny* clown.
The *door* was not locked.
Their *engine* needs some oil.

Two *foxes* crossed the frozen river.
The *train* was late this time.
My *grandmother* keeps bees and chickens.
Please put the *ladder* away now.
The *tailor* has lost his needle.
We heard *thunder* over the hills.
He painted the old *fence* green.
A *penguin* cannot fly at all.

Nobody knows why the *clown* looks unhappy.
The *engine* made a very odd noise.
She bought new *gloves* for the wedding.
We left our bicycles at the *station*.
He hides his *wallet* under the sofa.
The *ladder* is too short for me.
Their *goat* ate all of our cabbage.
A small river runs behind the *barn*.

Her *gloves* were still lying on the fence.
The *tailor* works until late in the afternoon.
My grandmother told us about the great *flood*.
We could hear the *thunder* from far away.
The children fed *carrots* to an old donkey.
The *train* to Paris leaves in ten minutes.
He opened the *door* and let us in.
The *zoo* has a penguin with one eye.

The *engine* of this truck needs to be repaired.
She found a *wallet* full of coins last Monday.
Every Sunday we have *pancakes* with butter and syrup.
The *river* rose so high that nobody could cross.
They built a fence around the field of *corn*.
A clown on tall *stilts* walked past our hotel.
My *grandmother* can still remember her very first train.
The *ladder* fell over while he was picking pears.

Nobody wanted to leave the house because of the *thunder*.
The tailor sewed two big *pockets* on my new jacket.
We took the early *train* so that we could hike.
She wore red gloves and a *scarf* to the game.
A *goat* jumped our fence and ran down the hill.
After the long *flood*, the river was calm again today.
His *wallet* was not in the car but at home.
The old *engine* is loud, but it still works well.
"""

FUNCTION_WORDS = """
a an the this that these those my your his her its our their i you he she it we they me him us them mine yours ours
theirs myself himself herself itself ourselves themselves who whom whose what which where when why how
is am are was were be been being do does did done have has had having can could will would shall should may might
must cannot not no nor never and or but so because if while although though unless than as of in on at by for with
from to into onto over under up down out off about after before near through between among across around during
until without within behind beside beyond along against toward towards like
very too also just always often ever still again already only even there here then now some any every each all many
much more most few several both other another such own everyone everybody someone somebody nobody anyone everything
something nothing anything
"""
NUMBER_WORDS = """
one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million zero
"""
