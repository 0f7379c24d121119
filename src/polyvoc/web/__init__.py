"""The server: HTTP API and web page over one open index.

`server` starts it with its `settings`; `security` decides which requests are served; `routes` and `schemas` are the HTTP API;
`service` does the work with `pool`, `decoder` (photographs are decoded in separate processes) and `caches`; `metrics` counts
requests; `html` writes self-contained reports.
"""
