"""LowerBound: the paper's LB, the best speed any linear merge could have (ToMA, section 5.1).

Tokens are merged and unmerged by fixed random projections, with no selection and no weights to compute. The image is
ruined; the time is what matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tokenmerge.config.interfaces import BlockContext, Layout, Operators, operators_for
from tokenmerge.methods.linear import LinearOperator
from tokenmerge.methods.toma import ToMA
from tokenmerge.methods.toma_plan import destinations_of


@dataclass(frozen=True, kw_only=True)
class LowerBound(ToMA):
    """ToMA's regions and hooks with random projections instead of its operators. For timing only.

    Its options are those of `ToMA`, with proportional=False.
    """

    proportional: bool = False

    @torch.no_grad()
    def plan(self, tokens: Tensor, layout: Layout, context: BlockContext, previous: Operators | None) -> Operators:
        if previous is not None:
            return previous
        assert layout.regions is not None
        regions = layout.regions
        batch = tokens.shape[0]
        groups = batch if self.assigns_globally else batch * regions.count
        rows = (layout.kept - regions.protected) * batch // groups
        columns = regions.count * regions.size * batch // groups
        # The same for every sample, so that none depends on the rest of its batch.
        down = _projection(groups // batch, rows, columns, tokens.device).repeat(batch, 1, 1).to(tokens.dtype)
        first = torch.arange(rows, device=tokens.device)
        start = torch.arange(groups // batch, device=tokens.device)[:, None] * columns
        indices = (first + start).view(1, -1).expand(batch, -1)
        operator = LinearOperator(
            down=down,
            up=down.transpose(-1, -2).contiguous(),
            regions=None if context.in_region_order or regions.is_identity else regions,
            protected=regions.protected,
            destinations=destinations_of(indices, regions, context.in_region_order),
        )
        return operators_for(self.keys, operator)


@lru_cache(maxsize=64)  # to sample on the host and copy would wait for the device at every new plan
@torch.inference_mode(False)  # what is kept must serve training too
def _projection(groups: int, rows: int, columns: int, device: torch.device) -> Tensor:
    """(groups, rows, columns): the same random numbers each time, rows scaled to sum 1."""
    sampled = torch.rand(groups, rows, columns, generator=torch.Generator().manual_seed(0))
    return (sampled / sampled.sum(dim=-1, keepdim=True)).to(device)
