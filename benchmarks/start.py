"""Seconds and memory of a process, from its start to its end: `python -m benchmarks.start`.

`elmo-fast embed` of the six sentences of `examples/` with the bundled model, and `load().embed` of one sentence, beside
the import of the two libraries that both need, and of torch, which neither imports. The processes run by turns; their
peak memory is Linux's.
"""

import os
import subprocess
import sys
import tempfile

from benchmarks import common

SENTENCES = common.ROOT / "examples" / "sentences.txt"
WAYS = {
    "import numpy, h5py": "import numpy, h5py",
    "elmo-fast embed": f"from elmo_fast.cli import main; main(['embed', {str(SENTENCES)!r}, 'vectors.h5', '--all'])",
    "load().embed": "import elmo_fast; elmo_fast.load().embed(['A new play opened last night .'])",
    "import torch": "import torch",
}
# VmHWM begins anew with the program; ru_maxrss would count what its parent had.
_PEAK = "; print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"


def run(arguments) -> dict:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(common.ROOT)
    mib = dict.fromkeys(WAYS, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        def process(way: str) -> None:
            done = subprocess.run([sys.executable, "-c", WAYS[way] + _PEAK], cwd=folder, env=environment,
                                  capture_output=True, text=True, check=True)
            mib[way] = max(mib[way], int(done.stdout) / 2**10)

        timings = common.interleave({way: lambda way=way: process(way) for way in WAYS}, arguments.rounds)
    first = timings["import numpy, h5py"]
    rows = [common.row(timing, "seconds", workload="six sentences", model="bundled", way=way, variant="process",
                       mib=mib[way], times_the_imports=1 / timing.times_as_fast_as(first))
            for way, timing in timings.items()]
    return common.document("start", {"rounds": arguments.rounds}, rows)


def report(content: dict) -> str:
    return "\n".join(f"{row['way']:20}{row['median']:8.2f} s{row['mib']:8.0f} MiB" for row in content["results"])


if __name__ == "__main__":
    parser = common.make_parser(__doc__, "start.json", ("--rounds", 15, "processes of each"))
    sys.exit(common.run_and_write(parser.parse_args(), run, "start.json", report))
