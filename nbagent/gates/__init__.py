"""The gates that come with nbagent; see `nbagent.interfaces.gate` for what a gate is."""

from nbagent.gates.control import Control
from nbagent.gates.permission import Permission
from nbagent.gates.timeout import Timeout
from nbagent.gates.truncate import Truncate

__all__ = ["Control", "Permission", "Timeout", "Truncate"]
