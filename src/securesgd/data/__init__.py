"""Data sets: embedded digits, MNIST, Fashion-MNIST, CIFAR-10 and the user's own; inputs in [0, 1], the split recorded.

    catalog     the table of named data sets: what each is, where it comes from and its checksums
    fetch       download one to this machine, from the first place that works, verified
    load        read one, or a .npz file, a folder of images, a table, torch Datasets or a function's arrays, as tensors
    settings    how a folder or a table is read
    schema      the public facts about a table, and how far its columns may move within a proven radius
    check       what a folder or a table holds, and everything that is wrong with it

Use these; the other modules are theirs. Only `load` loads torch.
"""
