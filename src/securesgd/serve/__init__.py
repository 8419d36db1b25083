"""A finished run as a web service: a JSON interface, and a page for people who want to try the model by hand.

`securesgd serve` is the way in; in Python, import `ServedRun` from `answers`, `build_app` from `app` and `serve` from
`server`. Needs the extra `serve` (fastapi and uvicorn).
"""
