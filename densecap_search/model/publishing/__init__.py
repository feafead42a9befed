"""An encoder written as other libraries read one; ``formats.py`` is the table of them."""
