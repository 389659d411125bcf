"""The seams: what parts of nbagent may know of each other."""
