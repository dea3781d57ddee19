"""Sentence embeddings with the sentence-transformers package, and a classifier with a transformers pipeline.

    python examples/sentence_encoder.py

The models are small and their weights are random: the embeddings and labels mean nothing. With your own model
only the two lines with `optimise` are new.
"""

import tempfile
import time

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizer, pipeline

import torchrlopt

SENTENCES = [
    "a short one",
    "the weather is nice today and we go for a walk",
    "graphs are rewritten",
    "one model serves many texts of different lengths",
] * 4


def build() -> tuple[SentenceTransformer, BertForSequenceClassification, BertTokenizer]:
    """An encoder that averages the states of a small BERT, and a classifier of the same size."""
    torch.manual_seed(0)
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    vocabulary = {word: at for at, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])}
    tokenizer = BertTokenizer(vocab=vocabulary)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
    )
    with tempfile.TemporaryDirectory() as folder:
        BertModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        words_to_states = Transformer(folder)
    encoder = SentenceTransformer(modules=[words_to_states, Pooling(128)], device="cpu")
    return encoder.eval(), BertForSequenceClassification(config).eval(), tokenizer


def seconds_and_embeddings(encoder: SentenceTransformer) -> tuple[float, torch.Tensor]:
    """Encode all sentences, in batches of 4, whose padded lengths differ."""
    start = time.perf_counter()
    embeddings = encoder.encode(SENTENCES, batch_size=4, convert_to_tensor=True, show_progress_bar=False)
    return time.perf_counter() - start, embeddings


if __name__ == "__main__":
    encoder, model, tokenizer = build()
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    labels = classify(SENTENCES[:4])
    _, expected = seconds_and_embeddings(encoder)
    original_s = min(seconds_and_embeddings(encoder)[0] for _ in range(3))

    encoder[0].model = torchrlopt.optimise(encoder[0].model)
    classify.model = torchrlopt.optimise(classify.model)

    compiling_s, embeddings = seconds_and_embeddings(encoder)
    fast_s = min(seconds_and_embeddings(encoder)[0] for _ in range(3))
    torch.testing.assert_close(embeddings, expected, rtol=1e-3, atol=1e-4)
    for got, wanted in zip(classify(SENTENCES[:4]), labels, strict=True):
        assert got["label"] == wanted["label"]
        assert abs(got["score"] - wanted["score"]) < 1e-4
    print(encoder[0].model.report)
    print(f"first call {compiling_s:.1f} s; then: original {original_s:.3f} s, optimised {fast_s:.3f} s")
