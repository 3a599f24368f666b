"""The parts of a biLM: token encoders and LSTM layers, their weights, carried states and batches."""
