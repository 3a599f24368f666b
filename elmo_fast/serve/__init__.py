"""The server: embeddings over HTTP, with the texts of all requests in the slots of one engine (docs/serving.md)."""
