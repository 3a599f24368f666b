"""Token tables: vectors of a vocabulary, their files, and the look-up of tokens in them."""
