"""Imported for what it does: torch starts its threads now, so that no test takes them for a leak."""

from __future__ import annotations

import torch

torch.ones(1 << 20).add_(1)
