"""Imported for what it does: torch starts its threads now; no test takes them for a leak then."""

from __future__ import annotations

import torch

torch.ones(1 << 20).add_(1)
