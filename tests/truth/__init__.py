"""Whether what Waypoint tells is true: stories, an oracle that looks at the machine itself, and a judge.

base.py           the root file system of the stories: real programs, nothing else
stories/          what happens: written stories as data, and random ones from operations
oracle/           facts of a live session, read by its own code; imports nothing of Waypoint
judge/            every statement of a card, a diff, a preview and a status against the facts
player.py         plays a story, looks at each point, asks for every statement
mutations.py      falsifies true answers: the judge has to notice each falsehood
campaign.py       `make truth`: all stories, and the table in docs/history.md
"""
