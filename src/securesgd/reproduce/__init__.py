"""The figures of the paper and our tables: grids as data, rows on disk, figures drawn from the rows.

`reproduce.reproduce` is the entry, and `EXPERIMENTS` its table, where one row adds one experiment. Everything here may
be imported without torch, which only measuring loads.
"""
