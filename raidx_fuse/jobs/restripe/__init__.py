"""Moving all chunks from one layout to another, in the order of the image."""
