"""`allennlp.tools`, the part that ELMo needs."""
