"""The HTML report of a run or of several, and its pictures: everything is read from run folders, without torch.

`page.report` writes the report; `plots` and `gallery` draw pictures that runs keep in their folders.
"""
