"""ToFu: Token Fusion, between pruning and merging (Kim et al., WACV 2024, arXiv:2312.01026)."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmerge.config.checks import check_whole, store_tuple
from tokenmerge.config.interfaces import BlockContext
from tokenmerge.config.ratio import is_number
from tokenmerge.errors import ConfigError
from tokenmerge.methods.tomesd import MatchedOperator, ToMeSD
from tokenmerge.ops.bipartite import Matching, merge_by_mlerp, merge_by_pruning


@dataclass(frozen=True, kw_only=True)
class ToFu(ToMeSD):
    """ToMeSD's matching; early blocks drop the matched tokens, later ones merge them without losing their length.

    From the paper: a layer that answers nearly linearly to interpolated inputs can take averaged tokens, and one that
    does not is better given real ones, so each layer either prunes or merges; early layers are the less linear ones;
    merging is MLERP, which keeps the direction of the mean and the length of the longest token, because plain means
    are too short. Tokens are matched by bipartite matching, and in image generation copied back, as in ToMeSD.

    Chosen here: linearity is not measured while images are made, it is stood for by the depth of a block, and the
    first half of them prune. Which ones do can be set, after measurements of your own say. A pruned token reads the
    result of the one it was matched with. Cells, schedule and the rest are ToMeSD's.

    Args:
        prune: float or tuple of int, default 0.5. The fraction of all blocks, from the model's input on, that prune; or
            the numbers of the blocks that do. Both cost the same time. Pruning keeps contrast and loses what was
            dropped; merging blurs a little. Try 0.5 first. The other options are those of `ToMeSD`.
    """

    prune: float | tuple[int, ...] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.prune, (list, tuple)):
            store_tuple(self, "prune")
            for number in self.prune:  # type: ignore[union-attr]
                check_whole("prune", number, least=0)
        elif not is_number(self.prune) or not 0 <= self.prune <= 1:
            raise ConfigError(
                f"prune is {self.prune!r}: it takes the fraction of blocks that prune, a number from 0 to 1, or a list "
                f"of their numbers."
            )

    def prunes(self, context: BlockContext) -> bool:
        """Whether this block drops tokens instead of merging them."""
        if not isinstance(self.prune, tuple):
            return context.index < self.prune * context.count
        if self.prune and max(self.prune) >= context.count:
            raise ConfigError(
                f"prune has block {max(self.prune)}, and the model has {context.count}, counted from 0: leave that out."
            )
        return context.index in self.prune

    def _operator(self, matching: Matching, context: BlockContext) -> MatchedOperator:
        return MatchedOperator(matching, merge_by_pruning if self.prunes(context) else merge_by_mlerp)
