"""Other implementations, run where a path or an installation is given, after their outputs were compared."""
