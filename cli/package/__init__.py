"""What an installed raidx has beside its modules: pages for man, completions, a Debian package."""
