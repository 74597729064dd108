"""Commands for a class: break an array, see its bytes, be asked about it."""
