"""``python -m densecap_search``: the same as ``densecap``."""

from densecap_search.cli import main

if __name__ == "__main__":
    main(prog_name="densecap")
