"""The commands of `raidx`, each in a module that is read when it is run."""
