"""The libraries that are compared: ours, and what TASO was released with."""

from __future__ import annotations

import functools

from torchrlopt import _C
from torchrlopt.substitutions import library_text, load_library
from torchrlopt.substitutions.load import subset_of
from training.taso.library import LIBRARY

OURS, TASO = "ours", "taso"
TITLES = {
    OURS: "our library",
    TASO: "TASO's rules",
}

#: What TASO's program has beside its file, as substitutions of ours: convolution with Relu or BatchNorm, and
#: convolutions of one input whose smaller kernel is enlarged. Its fusion of a convolution with a product is
#: wrong and left out.
BUILT_IN = ("fuse_conv_relu", "fold_batchnorm_into_conv", "merge_enlarged_convs_into_concat")
#: Normal forms that say nothing new, but that the prices of linear layers need.
NORMAL_FORMS = ("normalise_gemm", "normalise_gemm_bias", "normalise_gemm_bias_plain", "normalise_linear")


@functools.cache
def library(name: str) -> _C.Library:
    """One of `TITLES`.

    Raises:
        ValueError: there is no such library.
    """
    if name == OURS:
        return load_library()
    if name != TASO:
        raise ValueError(f"no library {name!r}; one of: {', '.join(TITLES)}")
    wanted = (*BUILT_IN, *NORMAL_FORMS)
    everything = _C.Library(library_text(with_generated=False))
    names = [each for each in everything.names if each.removesuffix("_no_b") in wanted]
    ours = subset_of(everything, names)
    texts = [f"# family: {ours.family(each)}\n{ours.text(each)}\n" for each in ours.names]
    return _C.Library("".join(texts) + LIBRARY.read_text(encoding="utf-8"))
