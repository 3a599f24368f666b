"""`allennlp.nn`, the part that ELMo needs."""
