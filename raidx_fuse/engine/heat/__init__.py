"""What the members' places hold and how often they are used, in a few numbers for a live screen."""
