"""ELMo with character inputs: the counterpart of bilm-tf's usage_character.py.

    python examples/usage_character.py [--options-file OPTIONS --weight-file WEIGHTS --vocab-file VOCAB]

A reading-comprehension model reads contexts and questions, and takes ELMo vectors at its input and at its output:
two mixtures of the layers, both shared by contexts and questions.
"""

import bilm_arguments
import torch

from elmo_fast import Options
from elmo_fast.compat.bilm import Batcher, BidirectionalLanguageModel, weight_layers

arguments = bilm_arguments.parse(__doc__)
max_characters = Options.from_file(arguments.options_file).char_cnn.max_characters_per_token

# The batcher maps text to character ids.
batcher = Batcher(arguments.vocab_file, max_characters)

# The biLM. There are no placeholders: it is called with ids, below.
bilm = BidirectionalLanguageModel(arguments.options_file, arguments.weight_file)

tokenized_context = [
    "The ferry leaves the old harbour at noon .".split(),
    "It comes back after dark , when the lamps are lit .".split(),
]
tokenized_question = [
    ["When", "does", "the", "ferry", "leave", "?"],
]
context_ids = batcher.batch_sentences(tokenized_context)
question_ids = batcher.batch_sentences(tokenized_question)

# The layers. States are kept separately for each stream, as bilm-tf keeps them for each placeholder.
context_embeddings = bilm(context_ids, stream="context")
question_embeddings = bilm(question_ids, stream="question")

# The mixtures. reuse=True takes the place of tf.variable_scope('', reuse=True).
elmo_context_input = weight_layers("input", context_embeddings, l2_coef=0.0)
elmo_question_input = weight_layers("input", question_embeddings, l2_coef=0.0, reuse=True)

elmo_context_output = weight_layers("output", context_embeddings, l2_coef=0.0)
elmo_question_output = weight_layers("output", question_embeddings, l2_coef=0.0, reuse=True)

print("context at the input:", tuple(elmo_context_input["weighted_op"].shape))
print("question at the input:", tuple(elmo_question_input["weighted_op"].shape))

# A step of the optimizer replaces session.run of a training step. Further batches use the same weights.
optimizer = torch.optim.Adam(bilm.variables.parameters(), lr=0.1)
for _ in range(3):
    elmo_context_input = weight_layers("input", bilm(context_ids, stream="context"), l2_coef=0.0, reuse=True)
    loss = elmo_context_input["weighted_op"].square().mean() + sum(bilm.variables.regularization_losses())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("layer weights of the input after three steps:", bilm.variables["input"].W.tolist())
