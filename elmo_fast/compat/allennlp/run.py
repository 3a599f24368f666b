"""`python -m allennlp.run elmo ...`."""

from elmo_fast.compat.allennlp.commands import main

if __name__ == "__main__":
    main(prog="allennlp")
