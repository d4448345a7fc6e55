"""Words for readable random names: `brave-otter`."""

from __future__ import annotations

_ADJECTIVES = """
    able agile airy alert amber ample ancient apt ardent astute azure bashful beige bold bouncy brave breezy bright
    brisk bronze bubbly burly calm candid careful casual cheerful chilly chirpy civil clever cloudy cobalt copper
    coral cosmic cozy crafty crimson crisp curious dainty dapper daring dashing deft demure devout diligent dotted
    dreamy dusty eager earnest easy ebony elated elegant emerald fabled fair faithful famous fancy fearless festive
    fierce fiery fleet fluffy fond frank free fresh friendly frosty frugal fuzzy gallant gentle giddy gifted glad
    gleaming glossy golden graceful grand grateful gusty handy happy hardy hasty hazel hearty helpful honest humble
    icy indigo ivory jade jaunty jolly jovial joyful keen kind lanky lavish lilac limber lively lofty loyal lucid
    lucky lunar magenta maroon mellow merry mighty mild misty modest mossy nifty nimble noble ochre olive opal
    pastel patient peppy perky placid plucky polite proud quaint quick quiet quirky radiant rapid regal robust rosy
    ruby rugged russet rustic sable sage sandy sapphire savvy scarlet serene sharp shiny silent silky silver sincere
    sleek smooth snug solar solemn spirited spotted spry steady stellar sturdy sunny swift tactful tawny teal tender
    thrifty tidy topaz tranquil trusty umber upbeat valiant vast velvet violet vivid warm wary whimsical wise witty
    zany zealous zesty
"""

_ANIMALS = """
    addax adder agouti albatross alpaca anchovy angelfish anole ant anteater antelope armadillo axolotl baboon badger
    barracuda bat beagle bear beaver bee beetle bison blackbird boar bobcat bonobo bullfinch bumblebee bunting
    butterfly buzzard camel canary capybara caracal caribou carp cassowary cat catfish chamois chameleon cheetah
    chickadee chinchilla chipmunk cicada civet clam cockatoo cod condor coot cormorant cougar coyote crab crane
    cricket crow cuckoo curlew deer dingo dodo dolphin donkey dormouse dove dragonfly duck dugong eagle echidna eel
    egret elephant elk emu ermine falcon ferret finch firefly flamingo flounder fox frog gannet gazelle gecko gerbil
    gibbon giraffe gnu goat goldfinch goose gopher gorilla goshawk grasshopper grebe grouse guanaco gull guppy haddock
    halibut hamster hare harrier hawk hedgehog heron herring hippo hoopoe hornet horse hummingbird ibex ibis iguana
    impala jackal jackdaw jaguar jay jellyfish kangaroo kestrel kingfisher kite kiwi koala koi krill kudu ladybug
    lamprey lark lemming lemur leopard linnet lion lizard llama lobster loon loris lynx macaque macaw mackerel magpie
    mallard manatee mandrill mantis marlin marmot marten meerkat mink minnow mole mongoose moose moth mouse mule
    narwhal newt nightingale nightjar nuthatch ocelot octopus okapi opossum orca oriole oryx osprey ostrich otter owl
    ox oyster panda pangolin panther parrot partridge peacock pelican penguin perch petrel pheasant pigeon pika pike
    piranha platypus plover polecat pony porcupine porpoise prawn puffin puma quail quetzal quokka rabbit raccoon
    raven ray reindeer rhino robin rook sailfish salamander salmon sandpiper sardine scorpion seahorse seal serval
    shark sheep shrew shrimp skink skunk sloth snail snipe sole sparrow spider spoonbill squid squirrel starling
    stoat stork sturgeon swallow swan swordfish tamarin tapir tarpon tarsier tern terrapin tiger toad tortoise
    toucan trout tuna turbot turtle uakari viper vole vulture wallaby walrus warbler wasp waxwing weasel whale wombat
    woodcock woodlark woodpecker wren yak zebra zebu
"""

ADJECTIVES = tuple(_ADJECTIVES.split())
ANIMALS = tuple(_ANIMALS.split())
