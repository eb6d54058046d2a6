"""The weights of a model that ``torch.export.save`` wrote."""

from __future__ import annotations

from pathlib import Path

import torch

from sparsegen.errors import MatrixError
from sparsegen.matrix.readers.files import check_readable
from sparsegen.pruning.torch_weights import TorchWeights


class ExportedWeights(TorchWeights):
    """The state dict of a ``.pt2`` file, in memory while this object is."""

    def __init__(self, path: Path) -> None:
        """Load it with PyTorch: do so only with files that you trust.

        Raises:
            MatrixError: it cannot be read, or is no exported program of this version of PyTorch.
        """
        check_readable(path)
        try:
            program = torch.export.load(path)
        except Exception as error:  # of many kinds: of zip files, of pickles, of schemas
            reason = str(error).strip().partition("\n")[0]
            raise MatrixError(
                f"not a program that this PyTorch ({torch.__version__}) can load: {reason}; export it again with "
                "torch.export.save, or give its weights as .safetensors",
                source=path,
            ) from error
        super().__init__(program.state_dict)
        self.source = str(path)
