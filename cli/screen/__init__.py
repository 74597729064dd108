"""`raidx watch`: a live screen of a running array.

    feed.py      asks the daemon on its control socket
    snapshot.py  what it answered, checked, as values
    model.py     what the screen knows: the newest snapshot, the last throughputs, the choice
    frame.py     the lines of the screen, from the model and a size
    orders.py    what a key does: a command line of `raidx`, its dry run first
    app.py       the terminal, by Textual

Everything but the last two lines is free of the terminal; so it makes the plain frame as well.
"""
