"""torch takes seconds to import: neither `import elmo_fast` nor the help of the command may do it."""

import pytest

import elmo_fast
from tests.support.files import start

HELP = "from elmo_fast.cli import main\ntry:\n    main({!r})\nexcept SystemExit as stop:\n    assert not stop.code"


@pytest.mark.parametrize("code", [
    "import elmo_fast\nelmo_fast.__version__, dir(elmo_fast)\nfrom elmo_fast import Options, read_fasta",
    *map(HELP.format, (["--help"], ["embed", "--help"], ["train", "--help"], ["seqvec", "--help"], ["--version"])),
])
def test_torch_is_not_imported_before_it_is_needed(code):
    process = start(f"import sys\n{code}\nassert 'torch' not in sys.modules")
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0)


def test_every_public_name_is_found_where_the_package_says():
    assert set(elmo_fast.__all__) == set(elmo_fast._MODULES) <= set(dir(elmo_fast))
    for name in elmo_fast.__all__:
        assert getattr(elmo_fast, name).__module__.startswith("elmo_fast.")
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = elmo_fast.Nothing
