"""python sft/filter_sft_by_tag.py --in-train FILE --in-val FILE --out-dir FOLDER [...]: the original's tag filter."""

import sys

from spa.__main__ import run

if __name__ == "__main__":
    sys.argv[1:1] = ["data", "filter"]
    run()
