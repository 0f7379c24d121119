"""Reports: figures as data, plots as SVG, tables and verdicts, an HTML page."""
