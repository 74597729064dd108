"""The FUSE front end: one image file for each volume."""
