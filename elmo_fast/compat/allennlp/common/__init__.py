"""`allennlp.common`, the part that code around ELMo imports."""
