"""Code for a process that registers the ELMo classes with a stand-in for AllenNLP: `sys.argv` are a model's files."""

STAND_IN = """
    import pickle
    import types
    from collections import UserDict

    import torch

    import elmo_fast

    class Registrable:
        registry = {}

        @classmethod
        def register(cls, name, exist_ok=False):
            def add(subclass):
                assert exist_ok or (cls, name) not in Registrable.registry, f"{name} is taken"
                Registrable.registry[cls, name] = subclass
                return subclass
            return add

    class TokenIndexer(Registrable):
        def __init__(self, token_min_padding_length=0):
            raise AssertionError

    class TokenEmbedder(torch.nn.Module, Registrable):
        pass

    class ConfigurationError(Exception):
        def __init__(self, message):
            super().__init__()
            self.message = message

        def __str__(self):
            return repr(self.message)

    class Params(UserDict):
        def add_file_to_archive(self, name):
            self.archived = getattr(self, "archived", []) + [self[name]]

    for path, base, name in (("data.token_indexers.token_indexer", TokenIndexer, "elmo_characters"),
                             ("modules.token_embedders.token_embedder", TokenEmbedder, "elmo_token_embedder")):
        base.register(name)(object)  # AllenNLP's own class
        sys.modules[f"allennlp.{path}"] = module = types.ModuleType(path)
        setattr(module, base.__name__, base)
    sys.modules["allennlp.common.checks"] = types.SimpleNamespace(ConfigurationError=ConfigurationError)
    import elmo_fast.compat.allennlp as ours
    assert Registrable.registry == {(TokenIndexer, "elmo_characters"): ours.ELMoTokenCharactersIndexer,
                                    (TokenEmbedder, "elmo_token_embedder"): ours.ElmoTokenEmbedder}
    for raised in (ConfigurationError, ours.ConfigurationError, elmo_fast.ConfigurationError, ValueError):
        try:
            ours.Elmo(None, None, 0)
        except raised as error:
            assert str(error) == str(pickle.loads(pickle.dumps(error))) == error.message
            assert error.message == "options_file: expected a path or URL, got None"
    assert ours.ConfigurationError is ConfigurationError
    options, weights = sys.argv[1:]
    params = Params(options_file=options, weight_file=weights, projection_dim=3)
    embedder = ours.ElmoTokenEmbedder.from_params(params=params, vocab=None, constructor_to_call=None)
    assert params == {} and params.archived == [options, weights]
    assert isinstance(embedder, TokenEmbedder) and embedder.get_output_dim() == 3
    assert embedder(ours.batch_to_ids([["a", "b"]])).shape == (1, 2, 3)
    indexer = ours.ELMoTokenCharactersIndexer.from_params(params=Params(namespace="n"))
    assert isinstance(indexer, TokenIndexer) and len(indexer.tokens_to_indices(["a"])["elmo_tokens"]) == 1
    """
