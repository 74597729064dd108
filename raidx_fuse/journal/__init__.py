"""The redo log (write-ahead log): records, group commit, the overlay, checkpoint, recovery."""
