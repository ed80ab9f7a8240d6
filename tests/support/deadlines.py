"""How long tests wait for something that another thread or process does.

A deadline only ends a test that hangs. On a laptop that is busy with other work, with an empty
cache of shaders, a command may take ten times as long as here, so no deadline is shorter.
"""

from __future__ import annotations

HANGS = 900
"""Seconds after which a thread or a process is considered to hang."""
