"""Where things run, and how a kernel that waits for a cell still hears clicks.

`threads`: the loop thread and the threads for sync tools. `kernel`: what is known of the Jupyter
kernel. `comms`: the bypass that lets clicks overtake a cell that waits. `cell`: the queue of things
that must run on the notebook's own thread.
"""

from nbagent.bridge.cell import Cell, allow_nested_asyncio, the_cell
from nbagent.bridge.comms import bypass_problem, comm_bypass
from nbagent.bridge.kernel import allows_stdin, cell_id, in_kernel, kernel
from nbagent.bridge.threads import ToolPool, agent_loop, on_agent_loop, tool_pool

__all__ = [
    "Cell",
    "ToolPool",
    "agent_loop",
    "allow_nested_asyncio",
    "allows_stdin",
    "bypass_problem",
    "cell_id",
    "comm_bypass",
    "in_kernel",
    "kernel",
    "on_agent_loop",
    "the_cell",
    "tool_pool",
]
