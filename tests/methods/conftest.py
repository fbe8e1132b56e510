"""A UNet of Stable Diffusion's shape, small enough to run in milliseconds."""

import pytest
import torch


@pytest.fixture(scope="session")
def tiny_unet():
    from diffusers import UNet2DConditionModel

    torch.manual_seed(0)
    return UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64, 64),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=4,
        norm_num_groups=8,
    ).eval()


@pytest.fixture(scope="session")
def denoise(tiny_unet):
    """Call the UNet on a fixed noisy latent of the given height and width."""

    @torch.no_grad()
    def call(height=16, width=16, batch=2):
        generator = torch.Generator().manual_seed(1)
        latent = torch.randn(batch, 4, height, width, generator=generator)
        text = torch.randn(batch, 7, 24, generator=generator)
        return tiny_unet(latent, torch.tensor(10), text).sample

    return call


@pytest.fixture
def attention_sizes(tiny_unet):
    """Start to note what self-attention is given, behind hooks attached before: block name -> (queries, keys)."""
    seen, handles = {}, []

    def start():
        for name, module in tiny_unet.named_modules():
            if name.endswith("attn1"):

                def note(module, args, kwargs, name=name):
                    queries = args[0] if args else kwargs["hidden_states"]
                    keys = kwargs.get("encoder_hidden_states")
                    seen[name] = queries.shape[1], (queries if keys is None else keys).shape[1]

                handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
        return seen

    yield start
    for handle in handles:
        handle.remove()
