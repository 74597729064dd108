"""The requests of the campaign: where they go, which come together, which wait inside others."""
