"""The fixtures of the flows, which these commands call."""

from __future__ import annotations

from tests.models.flow.conftest import _faults_are_found, builder, chain, in_process, lent

__all__ = ["_faults_are_found", "builder", "chain", "in_process", "lent"]
