"""The on-disk format: superblocks, pages, assembly, creation. FORMAT.md says every byte."""
