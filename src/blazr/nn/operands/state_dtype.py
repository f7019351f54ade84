"""What recurrent states are stored in at grid edges.

Every path rounds a state at every grid edge, whether or not it is kept there, so that it is the
same however a prompt was cut and wherever it was resumed. ``Carried`` and ``state_dtype`` of
``csrc/kernels.hpp`` say the same to kernels.
"""

from __future__ import annotations

import torch

from blazr.core.table import Table

STATE_DTYPES: Table[torch.dtype] = Table(
    "dtype of recurrent states", {"auto": torch.float32, "bfloat16": torch.bfloat16}
)
