"""Options and weights of models: names, addresses and files to arrays, without torch."""
