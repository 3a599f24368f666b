"""How far numbers may be apart. Loosening one is a decision to defend in a commit message."""

import torch

# Relative Frobenius error of a layer against the float64 reference, by precision and hardware path.
AGAINST_FLOAT64 = {"highest": 2e-6, "high-amx": 4e-5, "high-tf32": 2.5e-3, "medium-fp16": 3e-3, "medium-bf16": 3e-2}

# Relative Frobenius error of a gradient in fp32 against the float64 reference's autograd.
GRADIENT_AGAINST_FLOAT64 = 2e-5

# Largest absolute error against embeddings that TensorFlow wrote.
AGAINST_TENSORFLOW = 1e-5

# Largest absolute error between two runs of one model in fp32 whose sums may be ordered differently.
SAME_MODEL = 2e-6


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """|found - expected| / |expected|, Frobenius norms in float64."""
    found, expected = found.double(), expected.double()
    return float((found - expected).norm() / expected.norm())
