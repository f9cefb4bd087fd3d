"""The story of `make demo`: a shop, its events, and the programs that wait for them."""
