"""The search page for one index: python app.py INDEX [PORT]."""

import sys
from pathlib import Path

from densecap_search.retrieval.searcher import open_searcher
from densecap_search.ui.app import launch

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    launch(open_searcher(Path(sys.argv[1])), host="127.0.0.1", port=int(sys.argv[2]) if len(sys.argv) == 3 else 7860)
