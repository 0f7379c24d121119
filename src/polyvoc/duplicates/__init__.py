"""Duplicates of photographs: find, group and move them.

`compare` finds pairs of images and stores their evidence; `overlap` lays one image on the other; `probability` turns the
evidence into a probability; `groups` forms groups and chooses the best image of each; `move` moves the others, with a journal
to undo it.
"""

MIN_PROBABILITY = 0.9  # default of every interface: about nine of ten reported pairs are copies
