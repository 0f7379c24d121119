"""Many machines: the same index, the same scores, on Ray. `machines.py` is the door to it."""
