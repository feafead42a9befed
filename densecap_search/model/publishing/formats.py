"""The table of libraries that an encoder can be published for; the next one is a line here and a module beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from densecap_search.model.encoder import DualEncoder
from densecap_search.model.publishing import (
    huggingface,
    immich,
    onnx_towers,
    open_clip_folder,
    peft_adapters,
    sentence_transformers_folder,
)
from densecap_search.model.publishing.agreement import Loaded
from densecap_search.model.publishing.peft_adapters import Adapters


@dataclass(frozen=True)
class Format:
    """write: encoder (on the CPU, in float32), an empty folder and one of dtypes → files; ModelError where the
    architecture cannot be written. Or, where it is what a run trained that is written and not a whole model,
    write_adapters. load: that folder in the hands of the other library. usage: Python that loads it, for the card.
    library: as Hugging Face's hub calls it.
    """

    write: Callable[[DualEncoder, Path, str], None] | None
    load: Callable[[Path], Loaded]
    usage: str
    library: str
    dtypes: tuple[str, ...] = ("fp32",)
    write_adapters: Callable[[Adapters, Path], None] | None = None


FORMATS: Mapping[str, Format] = {
    "open_clip": Format(open_clip_folder.write, open_clip_folder.load, library="open_clip", usage="""\
import open_clip
model, _, preprocess = open_clip.create_model_and_transforms("local-dir:FOLDER")  # or hf-hub:NAME/REPOSITORY
tokenizer = open_clip.get_tokenizer("local-dir:FOLDER")
model.eval()
text = model.encode_text(tokenizer(["a red boat before a white lighthouse"]), normalize=True)"""),
    "huggingface": Format(huggingface.write, huggingface.load, library="transformers", usage="""\
from transformers import AutoModel, AutoProcessor
model, processor = AutoModel.from_pretrained("FOLDER").eval(), AutoProcessor.from_pretrained("FOLDER")
text = processor(text=["a red boat"], padding="max_length", truncation=True, return_tensors="pt")
features = model.get_text_features(**text)  # not of length 1; images: processor(images=[…]), get_image_features"""),
    "sentence-transformers": Format(sentence_transformers_folder.write, sentence_transformers_folder.load,
                                    library="sentence-transformers", usage="""\
from PIL import Image
from sentence_transformers import SentenceTransformer
model = SentenceTransformer("FOLDER")
similar = model.similarity(model.encode(["a red boat"]), model.encode([Image.open("boat.jpg")]))"""),
    "onnx": Format(onnx_towers.write, onnx_towers.load, library="onnx", dtypes=onnx_towers.DTYPES, usage="""\
import numpy, onnxruntime, tokenizers
tokenizer = tokenizers.Tokenizer.from_file("FOLDER/tokenizer.json")  # cuts and pads to the window
ids = numpy.array([tokenizer.encode("a red boat before a white lighthouse").ids], dtype=numpy.int32)
text = onnxruntime.InferenceSession("FOLDER/text.onnx").run(None, {"text": ids})[0]  # unit rows
image = onnxruntime.InferenceSession("FOLDER/image.onnx")  # "image": float32 [N, 3, H, W], as preprocess.json says"""),
    "immich": Format(immich.write, immich.load, library="onnx", dtypes=onnx_towers.DTYPES, usage="""\
# FOLDER/config.json says under "stands_for" whose place the folder takes, for example ViT-B-16__openai:
# cp -r FOLDER /path/to/model-cache/clip/ViT-B-16__openai
# then choose that model in immich's settings (Machine Learning → Smart Search) and run Smart Search on all."""),
    "peft": Format(None, peft_adapters.load, library="peft", write_adapters=peft_adapters.write, usage="""\
from peft import PeftModel
from transformers import AutoModel, AutoProcessor
model = PeftModel.from_pretrained(AutoModel.from_pretrained("FOLDER/base"), "FOLDER").eval()
processor = AutoProcessor.from_pretrained("FOLDER/base")
text = processor(text=["a red boat"], padding="max_length", truncation=True, return_tensors="pt")
features = model.get_text_features(**text)  # logit_scale stays that of the base"""),
}
