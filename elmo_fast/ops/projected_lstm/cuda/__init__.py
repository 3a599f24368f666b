"""The projected LSTM on NVIDIA GPUs: `lstm` is the op, the other files what it runs on."""
