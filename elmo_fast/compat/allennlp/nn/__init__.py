"""`allennlp.nn`, as far as it is ELMo's."""
