"""Ground floor: files, locked, written atomically, read within bounds."""
