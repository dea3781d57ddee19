"""Image generation with the diffusers package: the denoiser and the image decoder of Stable Diffusion.

    python examples/diffusion.py

The models are small and their weights are random, so the image is noise. With your own pipeline only the two
lines with `optimise` are new.
"""

import time

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

import torchrlopt


def build() -> StableDiffusionPipeline:
    """Stable Diffusion with narrow layers; prompts come as embeddings, so that it needs no tokenizer."""
    torch.manual_seed(0)
    text = CLIPTextConfig(
        vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    unet = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=64,
        attention_head_dim=8,
    )
    vae = AutoencoderKL(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
    )
    pipe = StableDiffusionPipeline(
        vae=vae.eval(),
        text_encoder=CLIPTextModel(text).eval(),
        tokenizer=None,
        unet=unet.eval(),
        scheduler=DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def seconds_and_image(pipe: StableDiffusionPipeline, prompt: torch.Tensor) -> tuple[float, torch.Tensor]:
    """One image in ten steps, always from the same noise."""
    start = time.perf_counter()
    result = pipe(
        prompt_embeds=prompt,
        negative_prompt_embeds=torch.zeros_like(prompt),
        num_inference_steps=10,
        generator=torch.Generator().manual_seed(1),
        output_type="pt",
    )
    return time.perf_counter() - start, result.images


if __name__ == "__main__":
    pipe = build()
    with torch.inference_mode():
        prompt = pipe.text_encoder(torch.randint(0, 1000, (1, 77))).last_hidden_state
        _, expected = seconds_and_image(pipe, prompt)
        original_s = min(seconds_and_image(pipe, prompt)[0] for _ in range(3))
        pipe.unet = torchrlopt.optimise(pipe.unet)
        pipe.vae.decoder = torchrlopt.optimise(pipe.vae.decoder)
        compiling_s, image = seconds_and_image(pipe, prompt)
        fast_s = min(seconds_and_image(pipe, prompt)[0] for _ in range(3))
    torch.testing.assert_close(image, expected, rtol=1e-3, atol=1e-3)
    print(pipe.unet.report)
    print(f"first image {compiling_s:.1f} s; then: original {original_s:.3f} s, optimised {fast_s:.3f} s")
