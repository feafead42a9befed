"""Fine-tune CLIP on image–dense-caption collections with HN-CLIP, and search them by long captions."""

__version__ = "0.2.0.dev0"
