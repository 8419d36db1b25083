"""What an auditor who trusts nobody finds in a run folder: each claim is recomputed from what it rests on.

`records.check_records` has the claims that need no torch, which `report` checks, too; `recompute` those that take the
network, `pages` the report and the model card, and `manifest` signatures; `folder` puts them together, for `Run.check`
and `securesgd.run_check.check_run`. Everything here only reads, but for `manifest.sign_folder`.
"""
