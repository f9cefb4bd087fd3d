"""Tools of the tests: real databases and brokers, never imported by production."""
