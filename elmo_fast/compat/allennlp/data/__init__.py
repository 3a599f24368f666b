"""`allennlp.data`, the part that ELMo needs."""
