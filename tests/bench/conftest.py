"""The bench is a program: only its test is collected."""

from __future__ import annotations

collect_ignore = [
    "harness.py",
    "rows_http.py",
    "rows_import.py",
    "rows_log.py",
    "rows_loop.py",
    "run.py",
]
