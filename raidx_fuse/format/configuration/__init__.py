"""The configuration of an array, as the superblocks hold it: values, sizes, names."""
