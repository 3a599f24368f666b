"""Words in context: the nearest ones, comparisons of two corpora, pictures and pages."""
