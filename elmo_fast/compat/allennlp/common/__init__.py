"""`allennlp.common`, the part that code using ELMo imports."""
