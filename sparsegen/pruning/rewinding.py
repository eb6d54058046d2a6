"""Learning-rate rewinding: when to prune, and which epochs' learning rates a pruned network is trained with again."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen import arguments
from sparsegen.errors import PruningError

MOST = 1_000_000  # epochs or rounds


@dataclass(frozen=True, slots=True)
class RewindingRound:
    """One round: prune the network as it is to ``sparsity``, hold its zeros, and train it through ``epochs``.

    Attributes:
        sparsity: share of the weights that are zero from here on, for `sparsegen.prune`.
        epochs: numbers of the original training's epochs, whose learning rates are used once more.
    """

    sparsity: float
    epochs: range


def rewinding_rounds(
    sparsity: float, epochs: int, *, retrained: int | None = None, rounds: int = 1
) -> tuple[RewindingRound, ...]:
    """The schedule of learning-rate rewinding (Renda, Frankle, Carbin, ICLR 2020).

    A network that was trained for T epochs is pruned, and trained for its last K epochs again with their learning
    rates; weights that were pruned stay zero. Muralidharan (MLSys 2023, section 2.2) does so once with K = T. Iterative
    pruning does so several times: each round prunes the same share of the weights that are left, and the last ends at
    the sparsity asked for.

    Args:
        sparsity: at the end, above 0 and below 1.
        epochs: T, of the original training.
        retrained: K, from 1 to T; default T.
        rounds: 1 for one step, more for iterative pruning.

    Raises:
        PruningError: a number that is out of range.
    """
    end = arguments.number(sparsity, "sparsity", PruningError)
    if not 0 < end < 1:
        raise PruningError(f"sparsity = {end:g} is not within (0, 1)")
    total = arguments.whole(epochs, "epochs", PruningError, least=1, most=MOST)
    again = (
        total
        if retrained is None
        else arguments.whole(retrained, "retrained", PruningError, least=1, most=MOST)
    )
    if again > total:
        raise PruningError(f"retrained = {again} is more than the {total} epochs of the original training")
    count = arguments.whole(rounds, "rounds", PruningError, least=1, most=MOST)
    kept = 1 - end
    return tuple(
        RewindingRound(end if done == count else 1 - kept ** (done / count), range(total - again, total))
        for done in range(1, count + 1)
    )
