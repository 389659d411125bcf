"""Tools: from functions or schemas to what an agent can call, and from results to text."""

from nbagent.tools.arguments import complete, rebind
from nbagent.tools.decorator import FunctionTool, tool
from nbagent.tools.plain import collected
from nbagent.tools.results import error_text, to_text

__all__ = ["FunctionTool", "collected", "complete", "error_text", "rebind", "to_text", "tool"]
