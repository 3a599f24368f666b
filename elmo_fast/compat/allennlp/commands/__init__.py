"""`allennlp.commands`, as far as it is ELMo's."""
