"""Every compiled loop: flat arrays in, flat arrays out, no class known. `build` makes segments, `score` reads them."""
