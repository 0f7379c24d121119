"""Duplicates of photographs: find, group, decide on and move them.

`compare` finds pairs of images and stores their evidence; `alignment` lays the pixels of one image on the other;
`probability` turns the evidence into the probabilities of the classes of a pair; `decisions` keeps a user's verdicts; `groups`
forms groups and chooses the best image of each; `move` moves the others, with a journal to undo it.
"""

MIN_PROBABILITY = 0.9  # default of every interface that shows copies
MOVE_PROBABILITY = 0.99  # default where files are moved
IDENTICAL, A_COPY, ANOTHER_SHOT, SOMETHING_ELSE = "identical", "copy", "another shot", "something else"  # classes of a pair
