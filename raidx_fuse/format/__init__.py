"""The on-disk format: superblocks, pages, log records, assembly, creation. See FORMAT.md."""
