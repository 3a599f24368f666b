"""`allennlp.data`, as far as it is ELMo's."""
