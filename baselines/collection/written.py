"""The architectures of `baselines/zoo/` that are not in the suite."""

from __future__ import annotations

from functools import partial

import torch

from baselines.collection.architecture import Architecture, Arguments, MakeArguments, Table, tensors, words
from baselines.zoo import diffusion, layers, light, message_passing, other_convolutions, pyramids

_image = tensors(x=(3, 32, 32))


def _ids(name: str) -> MakeArguments:
    return lambda batch: {name: words(batch, 9, 40)}


def _translation(batch: int) -> Arguments:
    source = words(batch, 9, 40)
    source[0, -2:] = 0
    return {"source": source, "target": words(batch, 7, 40)}


def _padded(batch: int) -> Arguments:
    padding = torch.zeros(batch, 9, dtype=torch.bool)
    padding[0, -3:] = True
    return {"x": torch.randn(batch, 9, 16), "padding": padding}


def _clicks(batch: int) -> Arguments:
    return {"numbers": torch.randn(batch, 6), "ids": torch.randint(30, (batch, 3))}


def _noise(batch: int) -> Arguments:
    return {"x": torch.randn(batch, 4, 8, 8), "step": torch.randint(1000, (batch,))}


def _illustrated_noise(batch: int) -> Arguments:
    return _noise(batch) | {"context": torch.randn(batch, 5, 12)}


def _labelled_noise(batch: int) -> Arguments:
    return _noise(batch) | {"label": torch.randint(10, (batch,))}


def _graph(batch: int) -> Arguments:
    """A graph of ten nodes and 24 edges per batch element."""
    return {"x": torch.randn(10 * batch, 8), "edge_index": torch.randint(10 * batch, (2, 24 * batch))}


def _graphs(batch: int) -> Arguments:
    return _graph(batch) | {"batch": torch.arange(batch).repeat_interleave(10)}


_convolutional = partial(Architecture, "convolutional")
_layers = partial(Architecture, "layers of torch.nn")

WRITTEN: Table = {
    "ghostnet": _convolutional(light.GhostNet, _image),
    "shufflenet": _convolutional(light.ShuffleNet, _image),
    "densenet": _convolutional(other_convolutions.DenseNet, _image),
    "unet": _convolutional(pyramids.UNet, _image),
    "feature_pyramid": _convolutional(pyramids.FeaturePyramid, _image),
    "hrnet": _convolutional(pyramids.HighResolution, _image),
    "yolo": _convolutional(pyramids.Yolo, _image),
    "deeplab": _convolutional(pyramids.DilatedPyramid, _image),
    "wavenet": _convolutional(other_convolutions.TemporalConvolutions, tensors(x=(4, 30))),
    "resnet3d": _convolutional(other_convolutions.Volume, tensors(x=(1, 8, 12, 12))),
    "mlp_mixer": _convolutional(other_convolutions.Mixer, _image),
    "pointnet": _convolutional(other_convolutions.PointNet, tensors(points=(20, 3))),
    "super_resolution": _convolutional(other_convolutions.SuperResolution, tensors(x=(3, 12, 12))),
    "vae": _convolutional(layers.Autoencoder, tensors(image=(1, 16, 16), noise=(6,))),
    "diffusion_unet": Architecture("diffusion", diffusion.DiffusionUNet, _illustrated_noise),
    "diffusion_transformer": Architecture("diffusion", diffusion.DiffusionTransformer, _labelled_noise),
    "lstm": _layers(layers.Tagger, _ids("ids")),
    "gru": _layers(layers.Forecaster, tensors(x=(7, 4))),
    "lstm_cell": _layers(layers.Unrolled, tensors(x=(4, 6))),
    "transformer": _layers(layers.Translator, _translation),
    "transformer_encoder": _layers(layers.Encoder, _padded),
    "multihead_attention": _layers(layers.Attends, tensors(x=(7, 16), keys=(5, 10), values=(5, 12))),
    "dlrm": _layers(layers.Recommender, _clicks),
    **{
        name: Architecture("graph", make, _graphs if name == "graph_conv" else _graph)
        for name, make in message_passing.NETWORKS.items()
    },
}
