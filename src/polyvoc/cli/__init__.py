"""The command line. `main` is the entry point; each other module has the commands that its name says.

`flags` makes flags from the options records; `terminal` prints.
"""
