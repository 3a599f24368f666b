"""`python -m elmo_fast.compat.allennlp.run elmo ...`, for `python -m allennlp.run elmo ...`."""

import sys

from elmo_fast.compat.allennlp.commands import main

if __name__ == "__main__":
    try:
        main(prog="allennlp")
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        sys.exit(f"allennlp: error: {' '.join(str(error).split()) or type(error).__name__}")
