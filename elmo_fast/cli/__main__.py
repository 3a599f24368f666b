"""`python -m elmo_fast.cli`, the same as `elmo-fast`."""

import sys

from elmo_fast.cli import main

sys.exit(main())
