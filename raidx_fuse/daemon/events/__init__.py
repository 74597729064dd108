"""Events of arrays: noticed, kept on disk, sent to the journal, to a program and by mail."""
