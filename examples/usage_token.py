"""ELMo with precomputed token vectors: the counterpart of bilm-tf's usage_token.py.

    python examples/usage_token.py [--options-file OPTIONS --weight-file WEIGHTS]
"""

import bilm_arguments

from elmo_fast.compat.bilm import BidirectionalLanguageModel, TokenBatcher, dump_token_embeddings, weight_layers

arguments = bilm_arguments.parse(__doc__)

tokenized_context = [
    "The ferry leaves the old harbour at noon .".split(),
    "It comes back after dark , when the lamps are lit .".split(),
]
tokenized_question = [
    ["When", "does", "the", "ferry", "leave", "?"],
]

# The vocabulary: every token, <S> and </S>. A word outside the vocabulary is refused, unless the vocabulary has <UNK>.
all_tokens = dict.fromkeys(["<S>", "</S>"])
for sentence in tokenized_context + tokenized_question:
    all_tokens.update(dict.fromkeys(sentence))
vocab_file = arguments.folder / "vocab_small.txt"
vocab_file.write_text("\n".join(all_tokens) + "\n", encoding="utf-8")

# The token vectors. Compute them once for a vocabulary.
token_embedding_file = arguments.folder / "elmo_token_embeddings.hdf5"
dump_token_embeddings(vocab_file, arguments.options_file, arguments.weight_file, token_embedding_file)

# The batcher maps text to token ids.
batcher = TokenBatcher(vocab_file)

# The biLM, which reads token ids.
bilm = BidirectionalLanguageModel(
    arguments.options_file,
    arguments.weight_file,
    use_character_inputs=False,
    embedding_weight_file=token_embedding_file,
)

context_ids = batcher.batch_sentences(tokenized_context)
question_ids = batcher.batch_sentences(tokenized_question)
context_embeddings = bilm(context_ids, stream="context")
question_embeddings = bilm(question_ids, stream="question")

elmo_context_input = weight_layers("input", context_embeddings, l2_coef=0.0)
elmo_question_input = weight_layers("input", question_embeddings, l2_coef=0.0, reuse=True)

elmo_context_output = weight_layers("output", context_embeddings, l2_coef=0.0)
elmo_question_output = weight_layers("output", question_embeddings, l2_coef=0.0, reuse=True)

print("context at the input:", tuple(elmo_context_input["weighted_op"].shape))
print("question at the input:", tuple(elmo_question_input["weighted_op"].shape))
