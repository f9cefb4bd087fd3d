"""The verbs of the matcher; each is one transaction."""
