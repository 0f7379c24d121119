"""An index as tools of an agent, by the Model Context Protocol: read-only, over standard input and output."""
