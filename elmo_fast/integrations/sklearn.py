"""`ElmoVectorizer`: a scikit-learn transformer from texts to ELMo vectors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from elmo_fast.arguments import DEFAULT_BATCH_SIZE, FreeState, Layers, Pool, Precision, listed
from elmo_fast.embed.api import Text, load
from elmo_fast.environment import extra
from elmo_fast.integrations import check_arguments, pooled_vectors, tokenized, width
from elmo_fast.text.tokenizers import Tokenizer
from elmo_fast.vectors.spec import POOLS
from elmo_fast.weights.sources import DEFAULT_MODEL

with extra("scikit-learn"):
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted


class ElmoVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A vector for every text: float32 [texts, 2 P], or [texts, layers * 2 P] with `layers="all"`.

    A text is a string or a list of tokens; the vector of a text without tokens is zero. `layers`, `pool`, `state`
    (`zero` or `warm`), `tokenizer` and `batch_size` are the arguments of `LoadedElmo.embed`, the others those of
    `load`. `fit` learns nothing: it reads the model, which is then part of the pickle.
    """

    def __init__(self, model: str = DEFAULT_MODEL, *, layers: Layers = "average", pool: Pool = "mean",
                 state: FreeState = "warm", tokenizer: str | Tokenizer = "auto",
                 device: str | None = None, precision: Precision = "highest", backend: str = "auto",
                 batch_size: int = DEFAULT_BATCH_SIZE, allow_nonfinite: bool = False):
        self.model = model
        self.layers = layers
        self.pool = pool
        self.state = state
        self.tokenizer = tokenizer
        self.device = device
        self.precision = precision
        self.backend = backend
        self.batch_size = batch_size
        self.allow_nonfinite = allow_nonfinite

    def fit(self, X: Iterable[Text], y=None) -> "ElmoVectorizer":
        """Load the model; X is only validated."""
        self._tokens(X)
        if self.pool is None:
            raise ValueError(f"pool: expected {listed(POOLS)}, got None")
        elmo = load(self.model, device=self.device, precision=self.precision, backend=self.backend,
                    allow_nonfinite=self.allow_nonfinite)
        check_arguments(elmo, self.layers, self.state, self.batch_size, self.pool)
        self.elmo_, self._n_features_out = elmo, width(elmo, self.layers)
        return self

    def fit_transform(self, X: Iterable[Text], y=None) -> np.ndarray:
        """`fit`, then `transform`; X and its texts may be generators."""
        if isinstance(X, (list, tuple, Iterator)):
            X = [list(text) if isinstance(text, Iterator) else text for text in X]
        return super().fit_transform(X, y)

    def transform(self, X: Iterable[Text]) -> np.ndarray:
        """Compute vectors of texts: float32 [texts, features]."""
        check_is_fitted(self)
        return pooled_vectors(self.elmo_, self._tokens(X), self.layers, self.state, self.batch_size, self.pool)

    def _tokens(self, X: Iterable[Text]) -> list[Sequence[str]]:
        if isinstance(X, (str, bytes, Mapping)) or not isinstance(X, Iterable) or getattr(X, "ndim", 1) != 1:
            raise ValueError(f"X: expected a list of texts, got {type(X).__name__} {getattr(X, 'shape', '')}".rstrip())
        return tokenized(X, "X", self.tokenizer)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.transformer_tags.preserves_dtype = []
        return tags
