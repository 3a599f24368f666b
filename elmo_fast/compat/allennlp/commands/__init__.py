"""`allennlp.commands`, the part that ELMo needs."""
