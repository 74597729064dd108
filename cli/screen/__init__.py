"""`raidx watch`: a live screen of a running array. Only app.py knows the terminal, by Textual."""
