"""One file per figure of the paper: its grid as data, its rows, its picture."""
