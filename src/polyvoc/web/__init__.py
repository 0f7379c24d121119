"""The web page and the HTTP interface of `polyvoc serve`: FastAPI over the library."""
