"""The search page for one index: python app.py INDEX [--port N], the same as `densecap serve`."""

import sys

from densecap_search.cli import main

if __name__ == "__main__":
    main(["serve", *sys.argv[1:]], prog_name="app.py")
