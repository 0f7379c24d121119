"""Copies of photographs: find them, group them, move them.

`compare` finds pairs; `overlap` lays one photograph on the other; `probability` turns the evidence into a probability; `groups`
chooses the best of each group; `move` moves the others, with a journal to undo it.
"""
