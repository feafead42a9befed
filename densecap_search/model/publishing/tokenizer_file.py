"""The tokenizer of an encoder as a tokenizer.json, which transformers, immich and the library tokenizers read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from open_clip.tokenizer import HFTokenizer, SimpleTokenizer, get_clean_fn

from densecap_search.errors import MissingPackage, ModelError
from densecap_search.files import write_json
from densecap_search.model.encoder import DualEncoder

START, END = "<|startoftext|>", "<|endoftext|>"  # as Hugging Face spells open_clip's two
PAD = "!"  # token 0 of CLIP's vocabulary, which open_clip fills a window with
_PUNCTUATION = r"""[!-/:-@\[-^`{-~]"""  # of ASCII, without the underscore


def save_tokenizer(encoder: DualEncoder, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    made, pad = as_tokenizers(encoder)
    made.save(str(folder / "tokenizer.json"))
    special = {"bos_token": START, "eos_token": END, "unk_token": END} if pad == PAD else {}
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": encoder.context_length, "pad_token": pad,
        **special})


def as_tokenizers(encoder: DualEncoder) -> tuple[Any, str]:
    """A ``tokenizers.Tokenizer`` that cuts and pads to the window, and the token that it pads with."""
    tokenizer = encoder.tokenizer
    if isinstance(tokenizer, SimpleTokenizer) and tokenizer.reduction_fn is None:
        made, pad = _clip_bpe(tokenizer), PAD
    elif isinstance(tokenizer, HFTokenizer) and getattr(tokenizer.tokenizer, "backend_tokenizer", None) is not None:
        library = _library()
        made = library.Tokenizer.from_str(tokenizer.tokenizer.backend_tokenizer.to_str())
        pad = str(tokenizer.tokenizer.pad_token)
        made.normalizer = _joined([*_cleaning(tokenizer.clean_fn), *([made.normalizer] if made.normalizer else [])])
    else:
        raise ModelError(f"the tokenizer of {encoder.name} ({type(tokenizer).__name__}) has no tokenizer.json")
    made.enable_truncation(max_length=encoder.context_length)
    made.enable_padding(length=encoder.context_length, pad_token=pad, pad_id=made.token_to_id(pad))
    return made, pad


def _clip_bpe(tokenizer: SimpleTokenizer) -> Any:
    """CLIP's own byte pairs; unlike open_clip's, it mends neither broken Unicode nor HTML entities."""
    library = _library()
    vocabulary = {_renamed(token): number for token, number in tokenizer.encoder.items()}
    merges = sorted(tokenizer.bpe_ranks, key=tokenizer.bpe_ranks.__getitem__)
    made = library.Tokenizer(library.models.BPE(
        vocab=vocabulary, merges=merges, continuing_subword_prefix="", end_of_word_suffix="</w>", unk_token=END))
    made.normalizer = _joined([library.normalizers.NFC(), *_cleaning(tokenizer.clean_fn)])
    words = library.Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    made.pre_tokenizer = library.pre_tokenizers.Sequence([
        library.pre_tokenizers.Split(words, behavior="removed", invert=True),
        library.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = library.decoders.ByteLevel()
    made.add_special_tokens([START, END])
    made.post_processor = library.processors.TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=[(START, vocabulary[START]), (END, vocabulary[END])])
    return made


def _renamed(token: str) -> str:
    return {"<start_of_text>": START, "<end_of_text>": END}.get(token, token)


def _cleaning(clean: Any) -> list[Any]:
    """open_clip's cleaning of text as normalisers."""
    library = _library()
    replace, lower = library.normalizers.Replace, library.normalizers.Lowercase()
    spaces = [replace(library.Regex(r"\s+"), " "), library.normalizers.Strip()]
    if clean is get_clean_fn("canonicalize"):
        return [replace("_", " "), replace(library.Regex(_PUNCTUATION), ""), lower, *spaces]
    return [*spaces, lower] if clean is get_clean_fn("lower") else spaces


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else _library().normalizers.Sequence(parts)


def _library() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.normalizers
        import tokenizers.pre_tokenizers
        import tokenizers.processors
    except ImportError as error:
        raise MissingPackage("a tokenizer.json is written by the package tokenizers; "
                             "pip install 'densecap-search[publish]'") from error
    return tokenizers
