"""`ElmoVectorizer` in scikit-learn itself: its pipelines, searches, copies, and its checks of estimators."""

import pickle
import warnings

import numpy as np
import pytest

import elmo_fast
from tests.support.docs import run_documented_code
from tests.support.files import write_model

pytestmark = pytest.mark.long
pytest.importorskip("sklearn", reason="scikit-learn is not installed: make test-integrations")

from sklearn.base import clone  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402
from sklearn.utils.validation import validate_data  # noqa: E402

from elmo_fast.integrations.sklearn import ElmoVectorizer  # noqa: E402

TEXTS = ["A good film .", "bad", "", "good good film", "a bad , bad play .", ["tokens", "as they are"]] * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_model(tmp_path_factory.mktemp("model")))


def expected(model, layers="average", pool="mean", state="warm", width=8):
    elmo = elmo_fast.load(model)
    return np.stack([elmo.embed([text], layers, state, pool)[0].ravel() if text else np.zeros(width, np.float32)
                     for text in TEXTS])


@pytest.mark.parametrize("layers, pool, state, width", [
    ("average", "mean", "warm", 8), ("top", "max", "zero", 8), ("all", "first_last", "warm", 24),
    ((0.5, 0.25, 0.25), "mean", "zero", 8), (0, "mean", "warm", 8)])
def test_vectors_are_those_of_embed(model, layers, pool, state, width):
    vectorizer = ElmoVectorizer(model, layers=layers, pool=pool, state=state, batch_size=3)
    vectors = vectorizer.fit_transform(text for text in TEXTS)
    assert vectors.dtype == np.float32 and vectors.shape == (len(TEXTS), width)
    np.testing.assert_array_equal(vectors, expected(model, layers, pool, state, width))
    assert list(vectorizer.get_feature_names_out())[-1] == f"elmovectorizer{width - 1}"
    assert vectorizer.transform([]).shape == (0, width)


@pytest.mark.parametrize("of_tokens", [iter, np.array, lambda text: (word for word in text)])
def test_texts_may_be_read_once(model, of_tokens):
    split = [["a", "bad", "film"], ["good"]]
    wanted = ElmoVectorizer(model).fit(split).transform(split)
    np.testing.assert_array_equal(ElmoVectorizer(model).fit_transform(map(of_tokens, split)), wanted)
    first, second = (make_pipeline(ElmoVectorizer(model), LogisticRegression()).fit(texts, [0, 1]).predict_proba(split)
                     for texts in (list(map(of_tokens, split)), split))
    np.testing.assert_array_equal(first, second)


def test_pipeline_search_clone_and_pickle():
    labels = np.array(["good" in text for text in TEXTS])
    pipeline = make_pipeline(ElmoVectorizer(), LogisticRegression(max_iter=1000))
    search = GridSearchCV(pipeline, {"elmovectorizer__layers": ["top", "average"]}, cv=2, n_jobs=1)
    search.fit(TEXTS, labels)
    assert search.best_score_ == 1 and search.cv_results_["rank_test_score"].size == 2
    copy = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(copy.predict(TEXTS), labels)
    np.testing.assert_array_equal(copy[0].transform(TEXTS), search.best_estimator_[0].transform(TEXTS))
    fresh = clone(copy[0])
    assert fresh.get_params() == copy[0].get_params() and not hasattr(fresh, "elmo_")
    with pytest.raises(NotFittedError):
        fresh.transform(TEXTS)


def test_a_tokenizer_and_columns_of_texts(model):
    pandas = pytest.importorskip("pandas")
    letters = ElmoVectorizer(model, tokenizer=list).fit_transform(["seq", "MK"])
    np.testing.assert_array_equal(letters, ElmoVectorizer(model).fit_transform([list("seq"), list("MK")]))
    raw, split = ["It isn't (bad)."], "It is n't ( bad ) .".split()
    for tokenizer, tokens in (("auto", split), ("penn", split), ("whitespace", raw[0].split())):
        np.testing.assert_array_equal(ElmoVectorizer(model, tokenizer=tokenizer).fit_transform(raw),
                                      ElmoVectorizer(model).fit_transform([tokens]))
    strings = [text for text in TEXTS if isinstance(text, str)]
    table = pandas.DataFrame({"text": strings})
    vectorizer = ElmoVectorizer(model).set_output(transform="pandas")
    frame = vectorizer.fit_transform(table["text"])
    np.testing.assert_array_equal(frame.to_numpy(), ElmoVectorizer(model).fit_transform(np.array(strings)))
    with pytest.raises(ValueError, match=r"^X: expected a list of texts, got DataFrame \(20, 1\)$"):
        vectorizer.fit(table)


@pytest.mark.parametrize("arguments, texts, message", [
    ({}, "one text", "X: expected a list of texts, got str"), ({}, 3, "X: expected a list of texts, got int"),
    ({}, ["a", float("nan")], r"X\[1\]: expected a string or a list of tokens, got float"),
    ({"state": "carry"}, ["a"], "state: expected one of zero, warm, got 'carry'"),
    ({"layers": "first"}, ["a"], "layers: expected one of all, top, average, the number of a layer or"),
    ({"pool": None}, ["a"], "pool: expected mean, max or first_last, got None"),
    ({"batch_size": 0}, ["a"], "batch_size: expected an integer of at least 1, got 0"),
])
def test_bad_arguments_are_named(model, arguments, texts, message):
    with pytest.raises(ValueError, match=f"^{message}") as error:
        ElmoVectorizer(model, **arguments).fit(texts)
    assert "\n" not in str(error.value)


class OfNumbers(ElmoVectorizer):
    """Reads the rows of a 2-D array as tokens, since scikit-learn's checks pass numbers."""

    def fit(self, X, y=None):
        return super().fit(list(validate_data(self, X).astype(str)), y)

    def transform(self, X):
        texts = validate_data(self, X, reset=False).astype(str)
        return super().transform(list(texts))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = False, True
        return tags


def test_scikit_learns_own_checks(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of checks that are skipped without other packages
        results = check_estimator(OfNumbers(model), on_fail=None)
    failed = {result["check_name"]: repr(result["exception"]) for result in results if result["status"] == "failed"}
    assert failed == {}
    assert sum(result["status"] == "passed" for result in results) > 40


def test_documented_code():
    names, readme = run_documented_code("scikit-learn")
    assert names["pipeline"].predict(["fine ."]) == [1]
    assert readme["pipeline"].fit(["good play .", "bad"], [1, 0]).predict(["good play ."]) == [1]
