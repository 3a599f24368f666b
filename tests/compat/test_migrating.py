"""docs/migrating.md: dotted names and imports resolve, and every public name of a drop-in is listed."""

import importlib
import pkgutil
import re

import pytest

from elmo_fast import compat
from tests.support.files import ROOT

TEXT = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
MODULES = [module.name for module in pkgutil.walk_packages(compat.__path__, "elmo_fast.compat.")
           if not module.name.endswith("__main__")]


@pytest.mark.parametrize("name", sorted(set(re.findall(r"elmo_fast\.[\w.]*\w", TEXT))))
def test_a_name_of_the_page_resolves(name):
    assert pkgutil.resolve_name(name) is not None


@pytest.mark.parametrize("module, names", re.findall(r"`from (bilm[\w.]*|elmo_fast[\w.]*) import ([\w, ]+)`", TEXT))
def test_an_import_of_the_page(module, names):
    imported = importlib.import_module(re.sub("^bilm", "elmo_fast.compat.bilm", module))
    assert all(hasattr(imported, name.strip()) for name in names.split(","))


@pytest.mark.parametrize("module", MODULES)
def test_a_public_name_is_on_the_page(module):
    public = getattr(importlib.import_module(module), "__all__", ())
    assert [name for name in public if not re.search(rf"\b{name}\b", TEXT)] == []


@pytest.mark.parametrize("module, names", [
    ("bilm.model", "BidirectionalLanguageModelGraph _pretrained_initializer"),
    ("bilm.training", "LanguageModel average_gradients clip_grads print_variable_summary"),
    ("simple_elmo", "Batcher BidirectionalLanguageModel weight_layers divide_chunks"),
    ("seqvec", "create_arg_parser main"), ("allennlp.commands.elmo", "empty_embedding")])
def test_names_that_are_not_offered_cannot_be_imported(module, names):
    imported = importlib.import_module(f"elmo_fast.compat.{module}")
    assert [name for name in names.split() if hasattr(imported, name)] == []
