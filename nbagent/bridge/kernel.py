"""What is known of the Jupyter kernel; finds it through `sys.modules` and imports nothing."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["allows_stdin", "cell_id", "front_end", "in_kernel", "kernel"]


def kernel() -> Any | None:
    """The kernel that this process is, None elsewhere."""
    module = sys.modules.get("IPython")
    if module is None or "ipykernel" not in sys.modules:
        return None
    return getattr(module.get_ipython(), "kernel", None)


def in_kernel() -> bool:
    """Whether this process is a Jupyter kernel."""
    return kernel() is not None


def allows_stdin() -> bool:
    """Whether who runs the cell can be asked for input; false under nbclient and papermill."""
    return bool(getattr(kernel(), "_allow_stdin", False))


def cell_id() -> str:
    """The message that runs the current cell; empty outside of a kernel."""
    return _header().get("msg_id", "")


def front_end() -> str:
    """The session of the front end that runs the current cell; a reload of its page is a new one."""
    return _header().get("session", "")


def _header() -> dict[str, Any]:
    found = kernel()
    if found is None:
        return {}
    try:
        return dict(found.get_parent("shell").get("header", {}))
    except Exception:  # noqa: BLE001 - a kernel of another make: the caller does without
        return {}
