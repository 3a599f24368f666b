"""`allennlp.tools`, as far as they are ELMo's."""
